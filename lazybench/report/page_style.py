"""How the page looks: on a screen, light or dark, wide or narrow, and on paper."""

STYLE = """
:root { color-scheme: light; --text: #1a1a1a; --quiet: #555; --paper: #fff; --line: #c8ccd0; --accent: #005f99;
  --code: #f3f4f5; --alarm: #c44f00; --alarm-paper: #fdf1e9; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --text: #e6e8ea; --quiet: #aab2ba; --paper: #14171a; --line: #3c444c; --accent: #7cc0ff;
    --code: #20252a; --alarm: #ff9d5c; --alarm-paper: #2e2119; }
}
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); max-width: 76rem;
  margin: 0 auto; padding: .6rem 1rem 3rem; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.25; margin: 1.6rem 0 .5rem; }
h1 { font-size: 1.1rem; margin: 0 0 .4rem; color: var(--quiet); font-weight: 600; }
h2 { font-size: 1.5rem; margin-top: 0; }
section + section { margin-top: 3rem; border-top: 2px solid var(--accent); padding-top: 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .3rem 1.2rem; margin: .4rem 0; }
dt { font-size: .75rem; color: var(--quiet); }
dd { margin: 0; font-size: .9rem; line-height: 1.35; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: .3rem; padding: .4rem; }
.main img { max-height: 62vh; }
figcaption, .notes, .missing, small { font-size: .8rem; color: var(--quiet); }
figcaption { margin-top: .3rem; max-width: 60rem; }
.wide { overflow-x: auto; margin: 1rem 0 .4rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: 1rem; font-weight: 600; padding-bottom: .3rem; }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
th, td { padding: .2rem .7rem; text-align: right; vertical-align: baseline; font-weight: 400; overflow-wrap: normal; }
td { white-space: nowrap; }
td small { display: block; line-height: 1.15; font-size: .72rem; white-space: pre; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--text); font-weight: 600; max-width: 9rem; }
tbody th, thead th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
tbody th[scope=row] { min-width: 8rem; }
tbody th[scope=rowgroup] { position: static; font-weight: 600; padding-top: .7rem;
  border-bottom: 1px solid var(--line); }
ul.notes { padding-left: 1.2rem; max-width: 70rem; }
pre { overflow-x: auto; background: var(--code); padding: .6rem; border-radius: .3rem; font-size: .8rem; }
pre.command { white-space: pre-wrap; }
summary { cursor: pointer; padding: .25rem 0; }
details { border-bottom: 1px solid var(--line); }
details details { border: 0; }
.filter { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: baseline; margin: .4rem 0 1rem;
  font-size: .85rem; color: var(--quiet); }
.filter[hidden], .filter [hidden] { display: none; }
.filter select, .filter input { font: inherit; color: var(--text); background: var(--paper); max-width: 14rem;
  border: 1px solid var(--line); border-radius: .3rem; padding: .2rem .4rem; }
.warnings { border: 0; border-left: .35rem solid var(--alarm); background: var(--alarm-paper); padding: .2rem .8rem;
  margin-bottom: .8rem; font-size: .9rem; }
.warnings ul { margin: .2rem 0; padding-left: 1.2rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 40rem) {
  body { padding: .5rem .7rem 2rem; }
  h2 { font-size: 1.2rem; }
  dl { grid-template-columns: 1fr; gap: .15rem; }
  dl div { display: grid; grid-template-columns: 6.2rem 1fr; gap: .5rem; align-items: baseline; }
  th, td { padding: .2rem .45rem; }
  tbody th[scope=row] { max-width: 42vw; min-width: 7rem; font-size: .8rem; line-height: 1.3; }
}
@media print {
  .filter { display: none; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide { overflow: visible; }
  table { font-size: 7.5pt; }
  td small { font-size: 6.5pt; }
  th, td { padding: .1rem .3rem; }
  tbody th { position: static; }
  tr, figure, dl { break-inside: avoid; }
  h2, h3, caption, thead { break-after: avoid; }
  .main img { max-height: 11cm; }
  .warnings::details-content { content-visibility: visible; block-size: auto; }
}
"""
