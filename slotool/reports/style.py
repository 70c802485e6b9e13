"""The page's looks: light, high contrast, one column that a phone can show."""

CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body {
  margin: 0; background: #f4f6f8; color: #1c2530; line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 20px; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 6px; }
section, main > .wide {
  background: #fff; border: 1px solid #d9dee5; border-radius: 8px; padding: 20px 24px; margin: 0 0 24px;
}
section > p { margin: 0 0 12px; max-width: 72ch; }
.plot { width: 100%; height: 440px; }
.plot.square { height: min(640px, 100vw); max-width: 700px; }
.wide { overflow-x: auto; }
section > .wide { margin-top: 14px; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 16px 5px 0; border-bottom: 1px solid #e8ecf0; vertical-align: top; }
tr > :last-child { padding-right: 0; }
tbody tr:last-child > * { border-bottom: none; }
thead th { color: #4a5561; font-weight: 600; white-space: nowrap; border-bottom: 1px solid #b9c2cc; }
th.number, td.number { text-align: right; white-space: nowrap; }
td { overflow-wrap: break-word; }
.summary th { font-weight: 400; }
.summary td { text-align: right; font-weight: 600; }
.source { margin: 10px 0 0 !important; font-size: 0.82rem; color: #5c6670; overflow-wrap: anywhere; }
a { color: #0b5fa5; text-decoration: none; }
a:hover { text-decoration: underline; }
@media (max-width: 600px) {
  main { padding: 20px 10px 40px; }
  h1 { font-size: 1.5rem; }
  section, main > .wide { padding: 14px 12px; }
  .plot { height: 360px; }
  .plot.square { height: 96vw; }
}
@media print {
  body { background: #fff; }
  section, main > .wide { break-inside: avoid; border: none; padding: 0; }
}
"""
