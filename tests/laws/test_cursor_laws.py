"""Laws of cursors."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tenantry.db.pagination import Position, decode_cursor, encode_cursor
from tenantry.domain.errors import InvalidCursorError

ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=100)


@given(st.integers(-(2**62) + 1, 2**62 - 1), ids)
def test_a_cursor_gives_back_its_position(key: int, row_id: str) -> None:
    assert decode_cursor(encode_cursor(Position(key, row_id))) == Position(key, row_id)


@given(st.integers(-(2**62) + 1, 2**62 - 1), ids)
def test_a_cursor_fits_into_an_address(key: int, row_id: str) -> None:
    assert all(
        character.isalnum() or character in "-_"
        for character in encode_cursor(Position(key, row_id))
    )


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_other_text_is_refused(text: str) -> None:
    with suppress(InvalidCursorError):
        position = decode_cursor(text)
        assert isinstance(position.key, int)
        assert "\x00" not in position.id
