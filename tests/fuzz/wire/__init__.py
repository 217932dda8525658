"""Fuzzes real processes over real sockets.

frames       HTTP/2 frames and header blocks as bytes: written freely, read strictly
connection   one HTTP/2 connection with many calls in flight
calls        damaged gRPC calls
strays       what is no gRPC at all: broken frames, garbage, TLS that ends early, HTTP requests
coordinator  a real coordinator, honest nodes that must still be served, and what its log and memory say
attack       feeds a coordinator
hostile      a coordinator that lies, for a real node
"""
