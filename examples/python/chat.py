"""A conversation in the terminal: python chat.py MODEL [TEMPLATE], where the template is needed if the model has none."""

import sys

import ptero

model = ptero.Model(sys.argv[1], chat_template=sys.argv[2] if len(sys.argv) > 2 else None)
chat = model.chat(system="Be brief.", temperature=0.7)
while True:
    try:
        message = input("> ")
    except EOFError:
        break
    try:
        for piece in chat.stream(message):
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass  # ends the reply; it stays in the conversation as far as it went
    print()
