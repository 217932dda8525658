"""Fuzzes everything that meets bytes of strangers: `make fuzz`.

For any input, a program must do what it is for, or refuse with a typed error, within bounded memory and time. Anything
else is a find.

    target         a parser, its typed errors, valid inputs, and its memory bound
    targets        the list of all targets: `payload_targets`, `message_targets`, `file_targets`
    mutations      damages inputs by their format, so that the checks behind the first one are reached too
    parsers        runs targets in this process, and keeps the inputs that are refused in a new way
    wire           fuzzes real processes over real sockets
    corpus         inputs that are kept; `make test-all` replays them
"""
