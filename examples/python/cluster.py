"""Texts for the rows of a dataset, on this machine or a cluster: python cluster.py [MODEL] (needs ray[data])"""

import sys

import ray

import ptero.ray

rows = ray.data.from_items([{"row_id": row, "question": f"Chapter {row}. The"} for row in range(64)])
texts = rows.map_batches(
    ptero.ray.Generator,
    fn_constructor_kwargs=dict(
        model=sys.argv[1] if len(sys.argv) > 1 else None,
        prompt="question",
        seed="row_id",
        output="answer",
        max_tokens=12,
    ),
    batch_size=16,
    concurrency=2,
    num_cpus=1,
)
for row in sorted(texts.take_all(), key=lambda row: row["row_id"])[:5]:
    print(row["row_id"], repr(row["answer"]))
