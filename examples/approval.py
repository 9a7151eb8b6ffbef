"""A call that a human must allow, today or next week.

python examples/approval.py        asks for a payment, and asks you. Say nothing (Ctrl-D), and it ends;
python examples/approval.py        run it again, whenever you like: the question is still open.

Nothing waits in memory in between: the question is a row in approval.db.
"""

from __future__ import annotations

import asyncio

from outlast import Host, Think, tool
from outlast.testing import ScriptedModel


class Clerk(Think):
    model = ScriptedModel.calls("pay", to="ACME", amount=120).then("That is settled.")

    @tool(needs_approval=True)  # or a function: lambda call: call.input["amount"] > 100
    async def pay(self, to: str, amount: int) -> str:
        """Pay an invoice."""
        print(f"   paying {amount} to {to}", flush=True)
        return "paid"


async def main() -> None:
    async with Host(agents=[Clerk], store="sqlite:///approval.db") as host:
        clerk = host.get(Clerk, "clerk")
        if not await clerk.get_messages():
            await clerk.save_messages("Pay the invoice of ACME, please.")
        for part in (await clerk.get_messages())[-1].parts:
            if part.get("state") == "approval-requested":
                print(
                    f"May it {part['type'].removeprefix('tool-')} {part['input']}? [y/n] ", end=""
                )
                try:
                    said = await asyncio.to_thread(input)
                except EOFError:
                    print("\nNobody answers. Run me again: the question stays open.")
                    return
                await clerk.add_tool_approval(part["toolCallId"], said.strip() == "y")
        await clerk.wait_until_stable(timeout=30)
        print((await clerk.get_messages())[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
