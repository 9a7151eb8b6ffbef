"""Words and marks of many languages, for `beginnings` and `folding`."""

from __future__ import annotations

# "Sure": what a greeting begins with. Longer ones first.
YES = """
sure thing|sure|certainly|of course|absolutely|okay|ok|alright|all right|got it|understood|no problem
my apologies|apologies|great|yes
natürlich|klar|gerne|gern|selbstverständlich|in ordnung
bien sûr|d['’]accord|certainement|entendu
claro que sí|claro|por supuesto|de acuerdo
certo|va bene|certamente|com certeza
natuurlijk|uiteraard|oczywiście|tabii ki|elbette
конечно|хорошо|разумеется
好的|当然可以|当然|當然|没问题|沒問題
もちろんです|もちろん|承知しました|承知いたしました|はい|わかりました
물론입니다|물론이죠|물론|네|알겠습니다
بالتأكيد|بالطبع|حسنًا|حسنا
ज़रूर|बिल्कुल|ठीक है|בטח|כמובן
"""

# How a sentence about continuing begins that stands alone.
OPENERS = """
here|continuing|continued|continuation|picking up|resuming|let me continue|let['’]s continue
i['’]ll continue|i will continue
hier|fortsetzung|ich fahre fort
voici|suite|je continue|je reprends
aquí|continúo|continuación|continuando
ecco|proseguo|aqui|segue
hierbij|vervolg
продолжаю|продолжение|продолжим|вот
以下|下面|接下来|我继续|继续|繼續|接着
それでは|続き|続けます
이어서|계속하겠|계속해서
سأواصل|إليك|متابعة
आगे|यहाँ|הנה|המשך
"""

# What it talks about.
CONTINUING = """
contin[uú]|left off|carry on|carrying on|pick up|picking up|the rest|resum|proceed|where i stopped
fortsetz|weiter
la suite|le reste|reprend|poursui
el resto|sigo|siguien
prosegu|seguito|il resto|o resto|prossig
verder|vervolg
продолж|остальн
继续|繼續|接着|接下来|下文|余下|其余
続き|続け|残り
계속|이어|나머지
متابع|أكمل|استكمال|بقية|سأواصل
जारी|आगे|शेष|המשך|ממשיך
"""

# A refusal says one of the first, and one of the second.
SORRY = """
(?:(?:i['’]m|i am)? ?(?:very |so )?sorry)|i apologi[sz]e|unfortunately|i can(?:no|['’])t|i cannot
i['’]m (?:unable|not able)|i am (?:unable|not able)|as an ai
es tut mir leid|leider|entschuldig
(?:je suis )?désolée?|lo siento|mi dispiace|desculpe|sinto muito
извините|к сожалению|простите
抱歉|很抱歉|对不起|對不起|申し訳|すみません|죄송
آسف|عذرا|أعتذر|माफ़|क्षमा|סליחה|מצטער
"""
UNABLE = """
can(?:no|['’])t|cannot|unable|not able|won['’]t be able
kann (?:ich )?(?:\\w+ )*?nicht|ne peux pas|ne suis pas|no puedo|non posso|não posso
не могу|无法|無法|不能|できません|できかね|수 없
لا أستطيع|لا يمكنني|नहीं कर|לא יכול
"""

# Small words that stand in every text of a language.
FUNCTION_WORDS = {
    "English": "the and of to in is that it was for with as are this by from which or an be have not but",
    "German": "der die das und ist nicht ein eine zu den mit von auf für im dem sich des auch es wird sind",
    "French": "le la les et des est une un dans pour que qui sur avec pas du ce il elle sont au par plus",
    "Spanish": "el la los las y que en es un una por con para del se no como su más al pero son lo esta",
    "Italian": "il lo la gli le e di che è un una per con del della non si sono come dei nel più questo",
    "Portuguese": "o os as e que em um uma para com não do da dos das por se é mais como ao foi são seu",
    "Dutch": "de het een en van is dat in niet op te zijn met voor die aan er ook als bij wordt naar om",
    "Polish": "i w na z nie się jest do że to jak po za od przez dla są ten tej tym oraz który która",
    "Swedish": "och att det i en som är på för av med den till inte ett om har de kan var från vid men",
    "Turkish": "ve bir bu için ile da de çok daha olarak olan gibi kadar ne değil en sonra her ama o mi",
    "Russian": "и в не на что с по это как к из он она для за от так но они был было при также или мы",
    "Ukrainian": "і в не на що з та це як до для від він вона за або при його але вони був було також",
}

COMMAS = ",，、،.!！。…"
AFTER_I = " '’"  # "I am", "I'm"
PAUSES = ",;，；、،"
COLONS = ":："
FULL_STOPS = "。！？"  # no space follows them
SENTENCE_ENDS = ".!?…。！？؟।:："
CLOSING = "\"'”’»›」』)]}）】*_`~"
OPENING_QUOTES = ("“", "„", "«", "「", "『", '"', "'", "‘")
BULLETS = "•◦▪‣·"
SINGLE_QUOTES = "‘’‚‛′´ʼ‹›"
DOUBLE_QUOTES = "“”„‟″«»"


def alternatives(words: str) -> str:
    """Lines of alternatives as one regular expression."""
    return "|".join(words.strip().splitlines())
