"""Small tools without business words."""
