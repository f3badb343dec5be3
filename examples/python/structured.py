"""Answers that follow a JSON Schema: python structured.py [MODEL]"""

import json
import sys

import ptero

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "river": {"type": "boolean"},
        "bridges": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "river", "bridges"],
    "additionalProperties": False,
}

model = ptero.Model(*sys.argv[1:2])
answer = model.generate("A city by the sea, please.", json_schema=CITY, seed=1, max_tokens=120)
print(json.loads(answer.text))
print(model.generate("The date was", regex=r"[0-9]{4}-[0-9]{2}-[0-9]{2}", seed=1))
