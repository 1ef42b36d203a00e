"""The style sheet of a report's page, light and dark."""

STYLE = """
:root { color-scheme: light dark; --page: #f7f7f5; --panel: #ffffff; --ink: #1c1c1a;
  --soft: #63625d; --line: #e2e1dc; --c0: #2a6fc9; --c1: #0f9b72; --c2: #d18f00; --c3: #7a4fc4;
  --c4: #c2478f; --c5: #d2453f; --rest: #9a9992; --warn: #b4341f; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161615; --panel: #1f1f1d; --ink: #eeede8; --soft: #a5a49c; --line: #35352f;
    --c0: #5b9cf0; --c1: #3cc397; --c2: #e6b23c; --c3: #a98be6; --c4: #e07ab6; --c5: #f07a70;
    --rest: #84837b; --warn: #f59a86; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 0 0 8px; }
h3 { font-size: 14px; margin: 18px 0 4px; color: var(--soft); font-weight: 600; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin-top: 18px; }
.note, footer { color: var(--soft); font-size: 13px; margin: 0 0 10px; }
.none { color: var(--soft); margin: 0; } footer { margin-top: 22px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(122px, 1fr)); gap: 8px;
  margin-top: 14px; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 12px; } .card b { display: block; font-size: 18px; white-space: nowrap; }
.card span { color: var(--soft); font-size: 13px; }
.plot { display: block; width: 100%; height: auto; }
.plot text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.plot text.label { font-size: 12px; fill: var(--ink); }
.grid { stroke: var(--line); } .tick { stroke: var(--soft); }
.hover { fill: transparent; } .hover:hover { fill: var(--ink); fill-opacity: .07; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); }
.l3 { stroke: var(--c3); } .l4 { stroke: var(--c4); } .l5 { stroke: var(--c5); }
.lrest { stroke: var(--rest); stroke-dasharray: 4 3; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .crest { fill: var(--rest); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 4px 0; font-size: 13px; }
.key { width: 10px; height: 10px; margin-right: 6px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 16px;
  margin: 6px 0 14px; } figure { margin: 0; } figcaption { font-size: 13px; color: var(--soft); }
.columns { display: block; width: 100%; height: 64px; border-bottom: 1px solid var(--line); }
.mean { stroke: var(--ink); stroke-dasharray: 3 3; stroke-opacity: .6; }
.warn { color: var(--warn); }
.scroll { overflow-x: auto; margin-top: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; } tbody tr:last-child td { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 12px ui-monospace, Menlo, Consolas, monospace; }
@media print { body { background: none; } section, .card { break-inside: avoid; } }
"""
