"""HTML as a browser would find it."""

from html.parser import HTMLParser


class Seen(HTMLParser):
    """Every tag and attribute, as a browser would find them."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
