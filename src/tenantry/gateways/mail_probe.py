"""Asking a mail server whether it would take mail, without sending any."""

import asyncio
from contextlib import suppress
from typing import Final

import aiosmtplib

from tenantry.gateways.mail import Mailer, TemporaryMailError

_LONGEST_PROBE: Final = 20.0
_QUIT_TIMEOUT: Final = 2.0


class MailProbe(Mailer):
    """A mailer that only knocks."""

    async def probe(self) -> None:
        """Connect, change to TLS, greet and sign in, just as `send` does. Raises `TemporaryMailError`.

        Takes at most 20 s. Its message names the server, never the user, the password or the server's own words.
        """
        client = self._client()
        try:
            async with asyncio.timeout(_LONGEST_PROBE):
                await client.connect()
                await client.noop()
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_QUIT_TIMEOUT)
        except aiosmtplib.SMTPAuthenticationError as error:
            raise TemporaryMailError(f"the mail server refused the user or password ({error.code})") from None
        except aiosmtplib.SMTPResponseException as error:
            raise TemporaryMailError(f"the mail server refused the connection ({error.code})") from None
        except TimeoutError:
            raise TemporaryMailError("the mail server did not answer in time") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            raise TemporaryMailError(self._trouble(error)) from None
        finally:
            client.close()
