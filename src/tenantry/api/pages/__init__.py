"""Pages for people: templates, style sheets, and the routes that serve them."""
