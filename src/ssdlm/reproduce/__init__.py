"""The paper's experiments as commands: `ssdlm reproduce table1|table2|table3|figures`.

    scale + models + prompts -> order -> cells -> generations, reports -> page

A table is a module of this package, found by its name, with two functions:

    cells(order: Order) -> list[Cell]          what is to be generated and measured
    page(order: Order, found: Findings) -> Page    the table, from the cells' reports alone

and, where there is more to write while models are at hand, `prepare(order: Order) -> None` for
what the cells need and `record(order: Order) -> None` for what they do not hold.

A `Cell` is one setting: who writes (`Diffusion`, `Autoregressive`, `Given`, `Gold`), after which
prompts, with which options of `SSDLM.generate`, and with which of `evaluate` it is measured. It
lives in OUT/cells/NAME/: generations.jsonl and made.json are written by the stage `generate`,
report.json and measured.json by the stage `evaluate`, which needs no model and may run elsewhere. A
cell that is done is not run again, and cells of one name are shared by all tables in one OUT. The
stage `read` between them is for a GPU: what the judges find in the texts is kept in OUT/readings.

`order.scale` says how much; `order.models` maps roles (`ours`, `twin`, `paper`) to folders or Hub
names and `order.prompts` maps names (`50`, `owt-50`, `pplm`) to files. What is not given is told in
the notes of the page and never made up. `published.py` holds the paper's own figures. A `Page` is
Markdown parts, values for JSON, and plots; numbers come from `found.value(cell, metric)`.
"""
