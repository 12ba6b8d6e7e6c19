"""The paper's experiments as commands: `ssdlm reproduce table1|table2|table3|figures`.

    scale + models + prompts -> Experiment -> Settings -> texts -> reports -> Page

An `Experiment` is one run of one table: how large it is (`scale.py`), which model has which role,
and which file of prompts has which name. The module with the table's name lists its settings and
writes its page; it offers both as its `DEFINITION`.

A `Setting` is one point of the table's grid: whose texts (a `TextSource`: `Diffusion`,
`Autoregressive`, `Given`, `Gold`), after which prompts, with which options of `SSDLM.generate`, and
measured by which options of `evaluate`. Its files are in OUT/cells/NAME/:

    generate  generations.jsonl, made.json     generation.py, needs the models
    read      OUT/readings                     measurement.py, needs the judges and a GPU
    evaluate  report.json, measured.json       measurement.py, needs the judges
    page      OUT/TABLE.md, .json and .png     page.py, needs the reports alone

What is done is not done again, what was written with other options is refused, and the stages may
run on different machines. Settings of one name are shared by all tables in one OUT.

`table.py` prints rows of `Results`, which is what those files say, with the paper's own rows of
`published.py`; `plot.py` draws. What is missing is named in the notes and never made up.
"""
