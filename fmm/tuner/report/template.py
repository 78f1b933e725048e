"""The page's frame and style: nothing has a width of its own, so that nothing scrolls sideways."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 1.5rem auto;
  padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 0.25rem; }
h2 { font-size: 1.15rem; margin: 1.75rem 0 0.5rem; }
h1 + p { margin-top: 0; color: #555; }
code { font: 0.9em/1.4 ui-monospace, monospace; background: #f4f4f4; padding: 0.1em 0.25em; border-radius: 3px; }
figure { margin: 1rem 0; }
figcaption { color: #555; font-size: 0.85rem; line-height: 1.4; }
svg { display: block; width: 100%; max-width: 48rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
td, th { padding: 0.3rem 0.4rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
td:first-child, th:first-child { text-align: left; }
small { display: block; color: #666; font-size: 0.75rem; line-height: 1.3; font-weight: 400; }
.measured { font-weight: 600; background: #e8f3ec; } .predicted, .beyond { color: #444; background: #f6f6f0; }
.vendor, .none { color: #767676; }
.start { color: #222; }
.key span { padding: 0 0.3rem; }
.narrow { display: none; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.5rem; }
details { border-top: 1px solid #ddd; padding: 0.5rem 0; }
summary { cursor: pointer; font-weight: 600; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
dl { display: grid; grid-template-columns: fit-content(11rem) 1fr; gap: 0.3rem 1rem; font-size: 0.9rem; }
dl.typed { grid-template-columns: fit-content(24rem) 1fr; }
dt { font-weight: 600; } dd { margin: 0; }
.numbers td:not(:first-child), .numbers th { overflow-wrap: normal; }
.numbers td:last-child { overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .wide { display: none; } .narrow { display: block; }
  dl { display: block; } dd { margin: 0 0 0.5rem; }
  .folded thead { display: none; }
  .folded tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); padding: 0.5rem 0; }
  .folded th[scope=row] { grid-column: 1 / -1; border: 0; font-size: 1.05rem; }
  .folded td { text-align: left; border: 0; }
  .folded .none { display: none; } .folded .whole { grid-column: 1 / -1; }
  .folded td::before { content: attr(data-side); display: block; color: #666; font-size: 0.75rem; font-weight: 400; }
}
"""
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fmm: {title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head><body>
<h1>fmm on {title}</h1>
<p>How many times as fast as {base} <code>fmm.matmul(a, b)</code> is, by type and side of square matrices:</p>
{table}
<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div><figcaption>{caption}</figcaption></figure>
<h2>What it means</h2>
{meaning}
<h2>What to type next</h2>
{next}
<h2>Details</h2>
{details}
</body></html>
"""
