"""Tables that a script writes into a page: between <!-- NAME: begin --> and <!-- NAME: end -->."""
import sys


def put_between_marks(path, name, text):
    page = path.read_text()
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        sys.exit(f"{path}: wanted the marks {begin} and {end}")
    head, rest = page.split(begin, 1)
    path.write_text(head + begin + "\n" + text + end + rest.split(end, 1)[1])
