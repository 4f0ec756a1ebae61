"""The style of a result in a notebook. Text and background are those of the notebook, light or dark."""

STYLE = """
.cutaway{font:13px/1.45 system-ui,sans-serif;max-width:60rem;color:inherit}
.cutaway h3{font-size:15px;margin:.2em 0}.cutaway h4{font-size:12px;margin:1em 0 .3em;opacity:.7;font-weight:600}
.cutaway .note{opacity:.7;font-size:12px;margin:.2em 0}
.cutaway .example{border-top:1px solid #8886;padding:.5em 0}
.cutaway .columns{display:flex;flex-wrap:wrap;gap:12px 26px}.cutaway .side{flex:0 0 15rem}
.cutaway .tiles{flex:1 1 22rem;display:flex;flex-wrap:wrap;gap:14px 22px;align-content:flex-start}
.cutaway .tile{max-width:100%;min-width:0;overflow-wrap:anywhere;margin-bottom:8px}
.cutaway .tile p{margin:.2em 0}
.cutaway .name{font-weight:600;font-size:12px;margin-bottom:4px}.cutaway .name .badge{margin-left:6px}
.cutaway .picture{position:relative;display:block;width:150px;background-size:100% 100%;image-rendering:pixelated}
.cutaway .picture i{position:absolute;inset:0;background-size:100% 100%;filter:grayscale(1);opacity:.75}
.cutaway .picture img{position:relative;display:block;width:100%;height:100%;margin:0;max-width:none}
.cutaway .blank{background:#fff}
.cutaway .bars{display:grid;grid-template-columns:minmax(0,max-content) 110px max-content;gap:2px 8px;font-size:12px;
  align-items:center}
.cutaway .bars span:nth-child(3n+1){max-width:13rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cutaway .bars span:nth-child(3n){font-variant-numeric:tabular-nums;text-align:right}
.cutaway .track{position:relative;height:11px;background:#8882}
.cutaway .track b{position:absolute;top:0;bottom:0;background:#7b8794}
.cutaway .track b.for{background:#c8373c}.cutaway .track b.against{background:#2d6ec8}
.cutaway .track b.best{background:#1f8a5b}
.cutaway .tokens{max-width:42rem;line-height:2.5}
.cutaway .tokens span{display:inline-block;padding:1px 5px;border-radius:3px;margin:0 1px;line-height:1.25;
  text-align:center;white-space:pre}
.cutaway .tokens small{display:block;font-size:10px;opacity:.75}
.cutaway .badge{display:inline-block;color:#fff;font-size:10px;font-weight:700;border-radius:3px;padding:0 5px;
  white-space:nowrap}
.cutaway .agrees{background:#1a7f37}.cutaway .disagrees,.cutaway .failed{background:#cf222e}
.cutaway .inconclusive{background:#9a6700}.cutaway .not-applicable,.cutaway .not-checked{background:#656d76}
.cutaway ul{margin:.2em 0;padding-left:1.2em}.cutaway li{overflow-wrap:anywhere}
"""
