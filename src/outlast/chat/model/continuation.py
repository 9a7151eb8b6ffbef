"""How an interrupted answer can be continued: a capability of the model, and how to ask for it.

There are four ways, from the best to the last resort.

* *retrieve*: the provider keeps the answer, and the rest of it is fetched. No token is generated twice.
* *prefill*: the provider receives the stored text as the last, unfinished message of the model, which
  continues even in the middle of a word. The seam is invisible, and the provider's prompt cache is hit.
* *instruct*: the model is asked to continue (`seam.instruct`), and its answer is spliced
  (`seam.splice`).
* *new_message*: the partial answer stays as it is, and the answer continues in a message of its own.

`identity_of` reads the relevant facts from a model, `continuation_for` is the table, `prefill` makes the request.
Where a provider is not in
it, or a model is known to refuse, *prefill* is not tried: a provider that takes the stored text for a finished
message answers something else, without an error. What a provider refuses although the table says otherwise is
remembered (`Refusals`), for the life of the agent or host that owns it.

**Structured output** is never prefilled: a grammar begins with the first generated token, not with the
prefilled text. **Reasoning**: a model that thinks cannot be prefilled, because its thoughts come first.

What the providers say (read in November 2026):

| provider | prefill | where it says so |
| --- | --- | --- |
| llama.cpp | the last assistant message; not while the model thinks | ggml-org/llama.cpp#13174, #15404 |
| vLLM, SGLang | `continue_final_message`, without `add_generation_prompt` | docs.vllm.ai, sgl-project/sglang#4226 |
| Ollama | the last assistant message | ollama/ollama#6778 |
| Mistral | `prefix: true` in the last message; the answer begins with an echo | docs.mistral.ai, vercel/ai#3256 |
| DeepSeek | `prefix: true`, at `/beta`; not while it thinks | api-docs.deepseek.com, chat prefix completion |
| Moonshot | `partial: true` in the last message; not while it thinks | platform.kimi.ai, partial mode |
| Alibaba (Qwen) | `partial: true` in the last message; not while it thinks | help.aliyun.com, partial mode |
| Groq | the last assistant message | console.groq.com/docs/prefilling |
| LiteLLM | `prefix: true` in the last message | docs.litellm.ai/docs/completion/prefix |
| Anthropic | the last assistant message, up to Claude 4.5; not while it thinks; no white space at its end | platform.claude.com, migration guide |
| Bedrock | Claude as above; others refuse | the error says "must end with a user message" |
| Google | a last turn of the model, up to Gemini 3.1 and in 3.5 Flash; not while it thinks | pipecat-ai/pipecat#5821, LibreChat-AI/agents#323 |
| OpenRouter | the last assistant message, for models that can | openrouter.ai/docs, assistant prefill |
| OpenAI, Azure, xAI, GitHub | no | |
"""  # noqa: E501

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outlast.chat.model.request import models_behind
from outlast.chat.types.continuation import WAYS, ContinuationWay

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings


# --- who it is -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that decide how a model can continue."""

    provider: str  # as Pydantic AI names it: "openai", "anthropic", …
    model: str  # without vendor, region and date: "claude-sonnet-4-5"
    interface: str = "chat"  # the class of the model: "OpenAIResponsesModel" is "openairesponses"
    host: str = ""  # of its address
    vendor: str = ""  # of a model that another company serves: "anthropic" of "anthropic/claude-…"
    thinks: bool = False  # it does so in this request, or may
    keeps: bool = False  # the provider was asked to keep its answers
    is_one: bool = True  # False: several models may answer


def identity_of(model: Model, settings: ModelSettings | None = None) -> Identity:
    """Read the identity from a model and the settings of its request, without asking the provider."""
    inner = models_behind(model)
    if len(inner) != 1:
        return Identity(model.system, model.model_name, is_one=False)
    [model] = inner
    merged = {**(model.settings or {}), **(settings or {})}
    vendor, name = _named(model.model_name)
    return Identity(
        provider=model.system,
        model=name,
        interface=type(model).__name__.removesuffix("Model").lower(),
        host=(urlsplit(getattr(model, "base_url", None) or "").hostname or "").lower(),
        vendor=vendor,
        thinks=_thinks(model.profile, merged),
        keeps=bool(merged.get("openai_background") or merged.get("openai_store")),
    )


def _named(given: str) -> tuple[str, str]:
    """Vendor and name: of "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "meta-llama/llama-3:free", …"""
    name = given.lower().split("@", 1)[0]
    vendor, slash, rest = name.rpartition("/")
    if slash:
        name = rest.split(":", 1)[0]
    dotted = re.fullmatch(r"(?:[a-z]{2,6}\.)?([a-z0-9]+)\.([a-z].*)", name)
    if dotted is not None and not slash:
        vendor, name = dotted[1], dotted[2]
    return vendor.rpartition("/")[2], re.sub(r"-v\d+(?::\d+)?$", "", name)


_OFF = ("disabled", "between_tools")  # types of thinking that are none before the answer


def _thinks(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a request makes the model think, according to its settings and profile."""
    if profile.get("thinking_always_enabled"):
        return True
    body = settings.get("extra_body")
    own = settings.get("anthropic_thinking") or settings.get("google_thinking_config")
    own = own or (body.get("thinking") if isinstance(body, Mapping) else None)
    if isinstance(own, Mapping):
        return own.get("type") not in _OFF and own.get("thinking_budget") != 0
    wanted = settings.get("thinking")
    if wanted is not None:
        return wanted is not False
    effort = settings.get("openai_reasoning_effort")
    if effort is not None:
        return bool(effort != "none")
    return bool(profile.get("thinking_enabled_by_default"))


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prefill:
    """How a provider is asked to continue the last assistant message."""

    body: Mapping[str, Any] = field(default_factory=dict)  # more fields of the request
    flag: str | None = None  # the field of the last message that says so
    path: str | None = None  # of the provider's address, instead of its own
    echoes: bool = False  # its answer begins with the prefilled text
    is_certain: bool = True  # False: it may treat the text as a finished message; splice its answer


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to continue an answer, the best first, and why there is no better one."""

    ways: tuple[ContinuationWay, ...]
    prefill: Prefill | None = None
    why: str = ""

    def without(self, way: ContinuationWay, why: str) -> Ways:
        """Return the ways that are left after this one failed."""
        ways = tuple(each for each in self.ways if each != way)
        return Ways(ways, self.prefill if "prefill" in ways else None, why)


_LAST_MESSAGE = Prefill()
_OPEN_ENDED = Prefill(body={"continue_final_message": True, "add_generation_prompt": False})
_PREFIX = Prefill(flag="prefix")
_PARTIAL = Prefill(flag="partial")

_SPELLED: Mapping[str, Prefill] = {
    "vllm": _OPEN_ENDED,
    "sglang": _OPEN_ENDED,
    "ollama": replace(_LAST_MESSAGE, is_certain=False),  # it depends on the model's template
    "mistral": replace(_PREFIX, echoes=True),
    "deepseek": replace(_PREFIX, path="/beta"),
    "moonshotai": _PARTIAL,
    "alibaba": _PARTIAL,
    "groq": replace(_LAST_MESSAGE, is_certain=False),
    "litellm": replace(_PREFIX, is_certain=False),
    "anthropic": _LAST_MESSAGE,
    "bedrock": _LAST_MESSAGE,
    "google": _LAST_MESSAGE,
    "google-cloud": _LAST_MESSAGE,
    "google-gla": _LAST_MESSAGE,
    "google-vertex": _LAST_MESSAGE,
    "openrouter": replace(_LAST_MESSAGE, is_certain=False),
    "outlast-demo": _LAST_MESSAGE,  # the embedded model of `outlast demo`
}

_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[.-](\d{1,2})(?!\d))?")
_LAST_CLAUDE = (4, 5)  # that takes the beginning of its answer
_GEMINI = re.compile(r"gemini-(?:1\.|2\.|3-|3\.1-|3\.5-flash$|pro-latest)|gemma")
_OPEN_WEIGHTS = frozenset(
    {"meta-llama", "mistralai", "qwen", "deepseek", "google", "anthropic", "nousresearch", "z-ai"}
)
_NO_BETTER = "the provider cannot continue a message"


def continuation_for(
    identity: Identity,
    *,
    wanted: ContinuationWay | None = None,
    is_structured: bool = False,
    refusals: Refusals | None = None,
) -> Ways:
    """Return the ways in which this model can continue an answer.

    `wanted` is the user's choice: better ways are omitted, and prefill is tried even if the table does not
    list it. `is_structured`: the answer is JSON of a type. `refusals`: earlier refusals.
    """
    prefill, why = _prefill(identity, is_structured, is_wanted=wanted == "prefill")
    if prefill is not None and refusals is not None and identity in refusals:
        prefill, why = None, refusals.why(identity)
    ways: list[ContinuationWay] = ["instruct", "new_message"]
    if prefill is not None:
        ways.insert(0, "prefill")
    if identity.keeps and identity.interface.startswith("openairesponses"):
        ways.insert(0, "retrieve")
    if wanted is not None:
        ways = [way for way in ways if WAYS.index(way) >= WAYS.index(wanted)]
    return Ways(tuple(ways), prefill if "prefill" in ways else None, why)


def _prefill(
    identity: Identity, is_structured: bool, *, is_wanted: bool
) -> tuple[Prefill | None, str]:
    """Return how to request a prefill, or why it is impossible."""
    if not identity.is_one:
        return None, "several models may answer"
    if is_structured:
        return None, "a grammar begins with the first generated token"
    if identity.thinks:
        return None, f"{identity.model} thinks first"
    if identity.interface.startswith("openairesponses"):
        return None, _NO_BETTER
    spelled = _SPELLED.get(identity.provider)
    if spelled is None:
        if identity.provider == "openai" and _is_nearby(identity.host):
            return replace(_OPEN_ENDED, is_certain=is_wanted), ""
        return (_LAST_MESSAGE, "") if is_wanted else (None, _NO_BETTER)
    if not is_wanted and not _can_be_prefilled(identity):
        return None, f"{identity.model} refuses to continue a message"
    return (replace(spelled, is_certain=True) if is_wanted else spelled), ""


def _can_be_prefilled(identity: Identity) -> bool:
    """Return whether this model can be prefilled, if its provider supports that."""
    name, provider = identity.model, identity.provider
    if "claude" in name:
        version = _CLAUDE.match(name)
        return version is not None and (int(version[1]), int(version[2] or 0)) <= _LAST_CLAUDE
    if "gemini" in name:
        return bool(_GEMINI.match(name))
    if provider in ("anthropic", "bedrock"):
        return False
    if provider == "openrouter":
        return identity.vendor in _OPEN_WEIGHTS
    if provider == "litellm":
        return identity.vendor in ("deepseek", "mistral")
    return True


def _is_nearby(host: str) -> bool:
    """Return whether an OpenAI-compatible server is on this machine or its network: llama.cpp, vLLM, …"""
    if host == "localhost" or host.endswith((".local", ".internal", ".localhost")):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return bool(host) and "." not in host  # a name in a container's network


# --- what is refused -----------------------------------------------------------------------------

_REFUSED = re.compile(
    r"prefill|must end with a user|last turn in the conversation to be a user|ending with a model turn|"
    r"expected last role|last message must (?:be|have)|final assistant content|continue_final_message|"
    r"add_generation_prompt|(?:last|final) (?:message|turn)[^.]{0,40}\buser\b",
    re.IGNORECASE,
)


def is_prefill_refused(error: BaseException) -> bool:
    """Return whether a provider refused to continue a message.

    The words are those of Anthropic, Bedrock, Google, Mistral, llama.cpp, vLLM and their proxies.
    """
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status_code", None)
        body = getattr(seen, "body", None)
        if status in (None, 400, 422) and _REFUSED.search(f"{seen} {body or ''}"):
            return True
        seen = seen.__cause__
    return False


class Refusals:
    """The models that refused a prefill. An agent or a host owns one; it is not stored."""

    __slots__ = ("_why",)

    def __init__(self) -> None:
        self._why: dict[tuple[str, str, str], str] = {}

    def __contains__(self, identity: Identity) -> bool:
        return _key(identity) in self._why

    def add(self, identity: Identity, error: BaseException) -> None:
        """Record a refusal with its reason, which decisions show."""
        self._why[_key(identity)] = f"{identity.model} refused: {error}"

    def why(self, identity: Identity) -> str:
        return self._why.get(_key(identity), "")


def _key(identity: Identity) -> tuple[str, str, str]:
    return identity.provider, identity.host, identity.model
