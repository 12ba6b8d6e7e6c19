"""The paper's own figures, as its tables print them, with the label of each table.

Han, Kumar and Tsvetkov 2023.  [published] -> the rows that stand beside ours
"""

from __future__ import annotations

from ssdlm.reproduce.table import Row, is_percent

# A line without indent is a table's label in the paper's source and a length; below it are model,
# setting and figures: a dash is none, and a plus stands before the paper's standard deviation.

UNCONSTRAINED = """
mauve ppl_micro delta_log_ppl dist-1 dist-2 dist-3 zipf rep
tab:main_result_2 25
  Gold continuation | | 100 21.24 0 93.93 93.54 88.23 .84 .10
  GPT2-medium | top-p 0.95 | 97.35+.29 14.31+.07 .39 73.63+.11 90.44+.13 87.75+.13 1.01 .21+.05
  GPT2-large | top-p 0.95 | 97.01+.56 12.14+.06 .55 71.94+.10 89.84+.06 87.66+.06 1.02 .23+.08
  GPT2-xl | top-p 0.95 | 97.29+.80 11.90+.09 .57 72.02+.04 89.58+.14 87.39+.13 1.00 .22+.02
  SSD-LM | sampling p 0.99, T 1000 | 98.41 38.30 .58 75.61 90.85 87.58 .98 .10
  SSD-LM | sampling p 0.99, T 2500 | 98.33 30.89 .37 75.04 90.64 87.54 1.02 .18
  SSD-LM | sampling p 0.95, T 1000 | 98.18 33.79 .46 74.70 90.67 87.62 .99 .18
tab:main_result 50
  Gold continuation | | 100 17.75 0 88.62 95.88 93.71 .88 .10
  GPT2-medium | top-p 0.95 | 96.57+.40 12.72+.07 .33 66.31+.11 91.77+.03 92.75+.06 1.01 .26+.04
  GPT2-large | top-p 0.95 | 96.41+.78 10.57+.05 .51 64.91+.13 90.88+.06 92.38+.05 1.01 .41+.06
  GPT2-xl | typical 0.95 | 97.03+.50 10.33+.04 .54 64.87+.15 90.69+.07 92.16+.05 1.01 .37+.04
  SSD-LM | sampling p 0.99, T 1000 | 97.89 30.68 .54 68.99 92.60 92.94 1.01 .16
  SSD-LM | sampling p 0.95, T 1000 | 96.64 27.34 .43 67.75 92.16 92.91 1.01 .16
  SSD-LM | sampling p 0.9, T 2500 | 96.46 20.56 .14 66.61 91.46 92.56 1.05 .26
tab:main_result_3 100
  Gold continuation | | 100 14.83 0 81.40 96.21 96.12 .90 .20
  GPT2-medium | top-p 0.95 | 97.54+.43 11.68+.03 .23 58.48+.02 90.82+.04 94.56+.03 1.01 .50+.10
  GPT2-large | top-p 0.95 | 97.36+.22 9.43+.03 .45 56.96+.11 89.43+.10 93.96+.09 1.02 .60+.06
  GPT2-xl | top-p 0.95 | 97.53+.34 9.17+.04 .48 57.10+.11 89.35+.09 93.76+.08 1.00 .58+.06
  SSD-LM | sampling p 0.95, T 1000 | 97.67 23.38 .45 60.17 91.30 94.89 1.02 .30
  SSD-LM | sampling p 0.99, T 2500 | 97.36 21.17 .35 60.02 90.93 94.52 1.04 .44
  SSD-LM | sampling p 0.99, T 1000 | 97.10 26.41 .57 61.26 91.91 95.11 1.01 .32
"""

STORIES = """
mauve ppl_micro
tab:comparison_with_difflm 50
  Gold continuation | | 100 18.57
  Diffusion-LM | | 46.11 35.96
  SSD-LM | sampling p 0.5, T 2500 | 87.22 22.91
sec:appendix_comparison_difflm 50
  Diffusion-LM | encoder weights of BERT | 0.4 73157
"""

CONTROLLED = """
control_external control_internal ppl_macro dist-1 dist-2 dist-3
tab:ctr_result_2 12
  DAPT | customised LM | 66.7 - 106.5 65 85 79
  PPLM | customised classifier | 58.0 71.7 113.1 - - -
  FUDGE | customised classifier | 62.6 - 12.5 52 76 77
  GeDi | customised LM | 93.6 - 460.6 65 76 69
  DExperts | customised LM | 87.4 - 69.0 65 85 80
  MuCoLa | customised classifier | 89.0 - 38.7 49 72 73
  M&M LM | modular classifier | 65.1 94.3 264.1 - - -
  SSD-LM | modular classifier | 79.3 90.5 58.1 60 83 80
tab:ctr_result 20
  DAPT | customised LM | 70.0 - 78.7 64 89 86
  PPLM | customised classifier | 57.6 74.5 61.1 - - -
  FUDGE | customised classifier | 61.3 - 10.4 51 80 84
  GeDi | customised LM | 96.5 - 190.5 70 86 82
  DExperts | customised LM | 87.1 - 52.3 62 89 87
  MuCoLa | customised classifier | 88.3 - 30.3 50 76 77
  M&M LM | modular classifier | 65.9 96.3 167.2 - - -
  SSD-LM | modular classifier | 88.0 95.6 41.6 56 86 87
tab:ctr_result_3 50
  DAPT | customised LM | 79.8 - 57.2 61 92 94
  PPLM | customised classifier | 60.7 73.6 29.0 - - -
  FUDGE | customised classifier | 59.1 - 8.4 47 83 92
  GeDi | customised LM | 99.2 - 107.3 71 93 92
  DExperts | customised LM | 94.8 - 37.1 56 90 92
  MuCoLa | customised classifier | 86.0 - 27.8 52 76 80
  M&M LM | modular classifier | 68.6 93.8 122.3 - - -
  SSD-LM | modular classifier | 94.1 99.0 23.1 46 84 92
"""


def rows(printed: str, length: int) -> list[Row]:
    """Return the paper's rows at one length: `rows(UNCONSTRAINED, 50)`.

    Figures have the names of our reports, and are fractions where the paper prints percentages.
    """
    names, *lines = printed.strip().splitlines()
    found, source, size = [], "", ""
    for line in lines:
        if not line.startswith(" "):
            source, size = line.split()
        elif size == str(length):
            model, setting, figures = (part.strip() for part in line.split("|"))
            values: dict[str, float] = {}
            spread: dict[str, float] = {}
            for name, figure in zip(names.split(), figures.split(), strict=True):
                unit = 100 if is_percent(name) else 1
                value, _, plus = figure.partition("+")
                if value != "-":
                    values[name] = float(value) / unit
                if plus:
                    spread[name] = float(plus) / unit
            label = f"[paper] {', '.join(filter(None, (model, setting)))}"
            found.append(Row(label, values, spread, facts={"source": source}))
    return found
