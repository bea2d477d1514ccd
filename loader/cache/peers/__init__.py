"""Pages of other nodes: who owns a page, the server of a node's pages, and its client.

Each page has one owner among the nodes. A reader asks the owner, and reads the bucket only if the owner grants it the
page; it then sends the page to the owner. A server has no credentials and never reads a bucket.
"""
