"""The style of a report's page: light and dark, wide and narrow, without anything to load.

Kernels are blue and plain, PyTorch's operators purple and hatched: hues that colour-blind people
can tell apart, and words say the same.
"""

STYLE = """\
.bb-report {
  --ink: #1b1f24; --faint: #59636e; --paper: #ffffff; --band: #f3f5f7; --line: #d5dae0;
  --kernels: #0072b2; --library: #cc79a7; --link: #0b5394;
  color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 90rem; padding: 1rem;
  font: 0.9375rem/1.45 system-ui, sans-serif; overflow-wrap: break-word;
}
@media (prefers-color-scheme: dark) {
  .bb-report {
    --ink: #e6e9ed; --faint: #a2abb5; --paper: #14171b; --band: #20252b; --line: #39414a;
    --kernels: #56b4e9; --library: #cc79a7; --link: #8cc8ff;
  }
}
.bb-report h1 { font-size: 1.5rem; margin: 0 0 0.5rem; }
.bb-report h2 { font-size: 1.125rem; margin: 1.75rem 0 0.5rem; }
.bb-report p { margin: 0.25rem 0; }
.bb-report small, .bb-report .basis, .bb-report dt { color: var(--faint); font-size: 0.8125rem; }
.bb-report dl { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; margin: 1rem 0; }
.bb-report dd { margin: 0; font-size: 1.25rem; font-weight: 600; }
.bb-report .scroll { overflow-x: auto; }
.bb-report table { border-collapse: collapse; width: 100%; }
.bb-report th, .bb-report td { padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
.bb-report thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
.bb-report tbody td { border-bottom: 1px solid var(--line); }
.bb-report th.layers { background: var(--band); }
.bb-report th.layers small { font-weight: 400; margin-left: 0.75rem; }
.bb-report .figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bb-report .basis { display: block; }
.bb-report code { font: 0.8125rem/1.45 ui-monospace, monospace; }
.bb-report .by { display: inline-block; padding-left: 0.4rem;
  border-left: 0.3rem solid var(--library); }
.bb-report .kernels .by { border-color: var(--kernels); }
.bb-report .join .by { border-color: var(--line); }
.bb-report .bar { display: block; height: 0.5rem; min-width: 1px; margin: 0.2rem 0 0 auto;
  background: repeating-linear-gradient(45deg, var(--library) 0 4px, transparent 4px 6px);
  border: 1px solid var(--library); box-sizing: border-box; }
.bb-report .kernels .bar { background: var(--kernels); border-color: var(--kernels); }
.bb-report td.share { min-width: 5rem; }
.bb-report td.wide { min-width: 9rem; }
.bb-report summary { cursor: pointer; color: var(--link); }
.bb-report summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.bb-report li { margin: 0.3rem 0; }
@media (max-width: 50rem) {
  .bb-report thead { display: none; }
  .bb-report table, .bb-report tbody, .bb-report tr, .bb-report th.layers { display: block; }
  .bb-report tbody tr { padding: 0.4rem 0; border-bottom: 1px solid var(--line); }
  .bb-report tbody td { display: flex; gap: 0.75rem; padding: 0.1rem 0.3rem; border: 0;
    overflow-wrap: anywhere; }
  .bb-report tbody td > * { min-width: 0; }
  .bb-report tbody td.wide { min-width: 0; }
  .bb-report tbody td:empty { display: none; }
  .bb-report tbody td::before { content: attr(data-label); flex: 0 0 5.5rem; color: var(--faint);
    font-size: 0.8125rem; text-align: left; }
  .bb-report .figure { text-align: left; white-space: normal; }
  .bb-report .basis { display: inline; margin-left: 0.4rem; }
  .bb-report td.share > span { flex: 1; }
  .bb-report .bar { margin-left: 0; }
}
"""
