"""Fuzzes real processes over real sockets.

attack       a real coordinator, damaged calls to it, honest nodes that must still be served, its log and memory
guest        a joined node that can make and sign a right message of every call
strays       what is no gRPC at all: broken frames, garbage, TLS that ends early, HTTP requests
hostile      a coordinator that lies, for a real node
"""
