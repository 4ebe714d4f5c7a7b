"""An identity provider for the comparison: ``python -m bench.issuer ALGORITHM TENANTS FOLDER`` until a signal comes.

It writes an access token for each tenant's user to ``tokens`` in the folder, then its own address to ``address``.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.issuer import running_issuer, signing_key

LIFETIME: Final = 24 * 3600
"""Seconds that the tokens are good for."""


async def serve(algorithm: str, tenants: int, folder: Path) -> None:
    """Mint, and answer for the keys."""
    key, issued = signing_key(algorithm, algorithm.lower()), int(time.time())
    async with running_issuer(key) as issuer:
        said = {"org_role": "member", "scope": "openid projects:read", "iat": issued, "exp": issued + LIFETIME}
        tokens = [
            issuer.mint(key, claims={**said, "sub": f"user{number}", "org_id": f"t{number}", "jti": str(number)})
            for number in range(tenants)
        ]
        (folder / "tokens").write_text("\n".join(tokens))
        unfinished = folder / "address.new"
        unfinished.write_text(issuer.url)
        unfinished.rename(folder / "address")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
