"""Range reads and streamed puts of S3 over HTTP/1.1, without a client library."""
