#include "run_page.h"

#include <algorithm>
#include <cstdio>

#include "page.h"

namespace gradpress::cli {

namespace {

/// More points than a curve has pixels only make the file larger.
constexpr std::size_t kMostPoints = 1500;

constexpr const char* kStyle = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>gradpress: training runs</title><style>
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1160px;padding:20px;color:#1d2329;
background:#fff}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px}p{margin:4px 0}
.quiet{color:#57616b;font-size:13px}.note{color:#8a4b00}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:20px}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:14px;margin-bottom:2px}
svg{display:block;width:100%;font:12px system-ui,sans-serif;user-select:none}
.wide{overflow-x:auto}table{border-collapse:collapse}
td,th{padding:5px 14px 5px 0;text-align:right;border-bottom:1px solid #e4e8eb;white-space:nowrap;
font-variant-numeric:tabular-nums}
th{font-weight:600;color:#57616b;font-size:13px;white-space:normal;vertical-align:bottom}
td:first-child,th:first-child{text-align:left}
.key{display:flex;flex-wrap:wrap;gap:2px 18px;margin:14px 0 10px}
.dot{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}
pre{font:12px/1.4 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:6px 0}
#tip{position:fixed;display:none;background:#1d2329;color:#fff;padding:6px 9px;border-radius:5px;
pointer-events:none;font-size:12px;white-space:pre-wrap;max-width:300px;overflow-wrap:anywhere}
</style></head><body>
<h1 id="title"></h1><p id="headline"></p><p id="setting" class="quiet"></p><div id="notes"></div>
<div class="wide"><table id="table"></table></div>
<div id="key" class="key"></div><div id="curves" class="charts"></div>
<h2>Bytes sent per step, by one worker</h2><svg id="bytes" role="img" aria-label="bytes per step"></svg>
<section id="steps"><h2>One late step of each run</h2><div id="kinds" class="key"></div>
<div id="timelines"></div></section>
<section id="plans"><h2>Plans</h2></section>
<h2>Where the runs come from</h2><div id="sources"></div><div id="tip"></div>
<script>)";

/// Small tools, then the words and the table.
constexpr const char* kWords = R"(
const ns='http://www.w3.org/2000/svg',byId=id=>document.getElementById(id),tip=byId('tip');
const palette=['#1f6fb4','#d1641a','#2a8f5a','#8a4fb0','#b8336a','#5c6b73','#937300','#0f8596'];
const colour=i=>palette[i%palette.length],dash=i=>i<palette.length?'none':'6 3';
function el(name,attributes,parent,text){const e=document.createElementNS(ns,name);
 for(const k in attributes)e.setAttribute(k,attributes[k]);
 if(text!==undefined)e.textContent=text;parent.appendChild(e);return e}
function html(name,parent,text,cls){const e=document.createElement(name);
 if(text!==undefined)e.textContent=text;if(cls)e.className=cls;parent.appendChild(e);return e}
function dot(parent,fill){html('span',parent,'','dot').style.background=fill}
function show(e,text){tip.textContent=text;tip.style.display='block';
 tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-tip.offsetWidth-6))+'px';
 tip.style.top=Math.max(4,Math.min(e.clientY+16,innerHeight-tip.offsetHeight-6))+'px'}
const hide=()=>tip.style.display='none';
const brief=v=>v===0?'0':Math.abs(v)>=1e6||Math.abs(v)<1e-3?v.toExponential(2):
 String(Number(v.toPrecision(4)));
byId('title').textContent=data.title;byId('headline').textContent=data.headline;
byId('setting').textContent=data.setting;
for(const note of data.notes)html('p',byId('notes'),note,'note');
data.table.forEach((cells,i)=>{const tr=byId('table').insertRow();
 cells.forEach((c,j)=>{const td=html(i?'td':'th',tr);if(i&&!j)dot(td,colour(i-1));td.append(c)})});
data.runs.forEach((run,i)=>{const s=html('span',byId('key'));dot(s,colour(i));s.append(run.name);
 const p=html('p',byId('sources'),'','quiet');p.append(run.name+': '+run.source);
 if(run.command)html('pre',p,run.command);
 if(run.plan){const d=html('details',byId('plans'));d.open=run.plan.length<1500;
  html('summary',d,run.name);html('pre',d,run.plan)}});
if(!data.runs.some(run=>run.plan))byId('plans').remove();
)";

/// Curves over time and steps.
constexpr const char* kCurves = R"(
function ticks(lo,hi,count){const raw=(hi-lo)/count,size=10**Math.floor(Math.log10(raw));
 const step=[1,2,5,10].map(k=>k*size).find(s=>s>=raw),all=[];
 for(let t=Math.ceil(lo/step-1e-9)*step;t<=hi+step*1e-9;t+=step)all.push(Math.abs(t)<step/2?0:t);
 return all}
function extent(values){let lo=Infinity,hi=-Infinity;
 for(const v of values){if(v<lo)lo=v;if(v>hi)hi=v}
 if(lo>hi)return[0,1];if(lo===hi){const d=Math.abs(lo)*.1||1;return[lo-d,hi+d]}return[lo,hi]}
function curve(figure,c){figure.querySelector('svg')?.remove();
 const w=Math.max(260,figure.clientWidth),h=250,left=52,right=14,top=12,bottom=40;
 const svg=el('svg',{height:h,viewBox:`0 0 ${w} ${h}`,role:'img','aria-label':c.title},figure);
 const hiX=Math.max(...c.series.map(s=>s.points[s.points.length-1][0]))||1;
 let[lo,hi]=extent([...c.series.flatMap(s=>s.points.map(p=>p[1])),...(c.target==null?[]:[c.target])]);
 const pad=(hi-lo)*.05;lo=lo>=0?Math.max(0,lo-pad):lo-pad;hi+=pad;
 const X=v=>left+(w-left-right)*v/hiX,Y=v=>h-bottom-(h-top-bottom)*(v-lo)/(hi-lo);
 for(const t of ticks(lo,hi,5)){el('line',{x1:left,x2:w-right,y1:Y(t),y2:Y(t),stroke:'#e9edf0'},svg);
  el('text',{x:left-7,y:Y(t)+4,'text-anchor':'end',fill:'#57616b'},svg,brief(t))}
 for(const t of ticks(0,hiX,w<420?4:7))
  el('text',{x:X(t),y:h-bottom+17,'text-anchor':'middle',fill:'#57616b'},svg,brief(t));
 el('text',{x:(left+w-right)/2,y:h-6,'text-anchor':'middle',fill:'#57616b'},svg,c.x);
 if(c.target!=null){el('line',{x1:left,x2:w-right,y1:Y(c.target),y2:Y(c.target),stroke:'#57616b',
   'stroke-dasharray':'2 4'},svg);
  el('text',{x:w-right,y:Y(c.target)-5,'text-anchor':'end',fill:'#57616b'},svg,
   'target '+brief(c.target))}
 for(const s of c.series){el('path',{fill:'none',stroke:colour(s.run),'stroke-width':2,
   'stroke-dasharray':dash(s.run),'stroke-linejoin':'round',
   d:s.points.map((p,i)=>(i?'L':'M')+X(p[0]).toFixed(1)+' '+Y(p[1]).toFixed(1)).join('')},svg);
  if(s.points.length<=40)for(const p of s.points)
   el('circle',{cx:X(p[0]),cy:Y(p[1]),r:2.6,fill:colour(s.run)},svg)}
 const line=el('line',{y1:top,y2:h-bottom,stroke:'#8b959e',visibility:'hidden'},svg);
 const area=el('rect',{class:'area',x:left,y:top,width:w-left-right,height:h-top-bottom,
  fill:'transparent'},svg);
 area.addEventListener('pointermove',e=>{const r=svg.getBoundingClientRect();
  const at=Math.max(0,Math.min(hiX,((e.clientX-r.left)*w/r.width-left)/(w-left-right)*hiX));
  line.setAttribute('x1',X(at));line.setAttribute('x2',X(at));line.setAttribute('visibility','visible');
  show(e,c.x+' '+brief(at)+'\n'+c.series.map(s=>{const last=s.points[s.points.length-1];
   if(at>last[0]+hiX*.01)return s.name+': ended at '+brief(last[0])+' with '+brief(last[1]);
   let near=s.points[0];for(const p of s.points)if(Math.abs(p[0]-at)<Math.abs(near[0]-at))near=p;
   return s.name+': '+brief(near[1])+' at '+brief(near[0])}).join('\n'))});
 area.addEventListener('pointerleave',()=>{hide();line.setAttribute('visibility','hidden')})}
const curves=[];
function add(title,column,metric,target){for(const[x,at]of[['seconds of training',1],['step',0]]){
 const series=data.runs.map((run,i)=>({name:run.name,run:i,
  points:metric&&run.metric!==metric?[]:run.points.filter(p=>p[column]!=null)
   .map(p=>[p[at],p[column]])})).filter(s=>s.points.length);
 if(!series.length)continue;const figure=html('figure',byId('curves'));
 const name=title+(at?' against time':' against steps');html('figcaption',figure,name);
 curves.push([figure,{title:name,x,series,target}])}}
add('loss',2);
for(const metric of new Set(data.runs.map(run=>run.metric)))add(metric,3,metric,data.target);
)";

/// Bars of bytes, timelines, and drawing them all at the width there is.
constexpr const char* kLanes = R"(
function bars(){const svg=byId('bytes'),w=Math.max(260,svg.clientWidth),row=26;
 const most=Math.max(1,...data.runs.map(run=>run.bytes));
 const name=Math.min(w*.42,14+7*Math.max(...data.runs.map(run=>run.name.length)));
 svg.replaceChildren();svg.setAttribute('height',row*data.runs.length+4);
 data.runs.forEach((run,i)=>{const y=row*i+2,long=(w-name-84)*run.bytes/most,fit=Math.floor(name/7)-1;
  el('text',{x:0,y:y+16,fill:'#1d2329'},svg,
   run.name.length>fit?run.name.slice(0,Math.max(1,fit-1))+'…':run.name);
  const r=el('rect',{x:name,y:y+3,width:Math.max(2,long),height:row-9,rx:2,fill:colour(i)},svg);
  el('text',{x:name+Math.max(2,long)+6,y:y+16,fill:'#57616b'},svg,run.bytes_text);
  r.addEventListener('pointermove',e=>show(e,run.name+'\n'+run.bytes.toLocaleString('en')+
   ' bytes per step'));r.addEventListener('pointerleave',hide)})}
const kinds={encode:'#dd8f2d',decode:'#9c5f36',communication:'#4a86c8',other:'#a4b0b9'};
const kind=action=>/^Comp/.test(action)?'encode':/^Decomp/.test(action)?'decode':
 /@/.test(action)?'communication':'other';
const timed=data.runs.filter(run=>run.spans.length);
const end=Math.max(1,...timed.flatMap(run=>run.spans.map(s=>s[4])));
if(timed.length)for(const k of new Set(timed.flatMap(run=>run.spans.map(s=>kind(s[1]))))){
 const s=html('span',byId('kinds'));dot(s,kinds[k]);s.append(k)}else byId('steps').remove();
const order=['device','host','intra','inter'],rank=lane=>(order.indexOf(lane)+9)%9;
for(const run of timed){run.lanes=[...new Set(run.spans.map(s=>s[0]))].sort((a,b)=>rank(a)-rank(b));
 run.figure=html('figure',byId('timelines'));html('figcaption',run.figure,run.name)}
function timelines(){for(const run of timed){run.figure.querySelector('svg')?.remove();
 const w=Math.max(260,run.figure.clientWidth),row=24,left=60,floor=row*run.lanes.length+6;
 const svg=el('svg',{class:'lanes',height:floor+28,role:'img','aria-label':'timeline of '+run.name},
  run.figure);
 const X=us=>left+(w-left-16)*us/end;
 for(const t of ticks(0,end/1000,w<500?4:8)){el('line',{x1:X(t*1000),x2:X(t*1000),y1:0,y2:floor,
   stroke:'#e9edf0'},svg);
  el('text',{x:X(t*1000),y:floor+16,'text-anchor':'middle',fill:'#57616b'},svg,brief(t)+' ms')}
 run.lanes.forEach((lane,i)=>el('text',{x:0,y:row*i+18,fill:'#57616b'},svg,lane));
 for(const s of run.spans){const r=el('rect',{x:X(s[3]),y:row*run.lanes.indexOf(s[0])+4,
   width:Math.max(1,X(s[4])-X(s[3])),height:row-5,fill:kinds[kind(s[1])],stroke:'#fff',
   'stroke-width':.4},svg);
  r.addEventListener('pointermove',e=>show(e,s[2]+'\n'+s[1]+' on '+s[0]+'\n'+s[3].toFixed(0)+' to '+
   s[4].toFixed(0)+' µs ('+(s[4]-s[3]).toFixed(0)+' µs)'));
  r.addEventListener('pointerleave',hide)}}}
function draw(){for(const[figure,c]of curves)curve(figure,c);bars();timelines()}
draw();let width=innerWidth;
addEventListener('resize',()=>{if(innerWidth!==width){width=innerWidth;hide();draw()}});
</script></body></html>
)";

std::string number_text(const char* format, std::optional<double> value) {
  if (!value) return "–";
  char text[48];
  (void)std::snprintf(text, sizeof text, format, *value);
  return text;
}

bool any(const auto& things, const auto& test) { return std::ranges::any_of(things, test); }

Json table_of(const std::vector<TrainRun>& runs, const RunComparison& comparison) {
  const bool exposed = any(runs, [](const TrainRun& run) { return run.exposed_ms.has_value(); });
  const bool one_metric =
      !any(runs, [&](const TrainRun& run) { return run.metric != runs.front().metric; });
  const std::string metric = one_metric ? runs.front().metric : "metric";
  Json head = {"run", "steps", "ms per step"};
  if (exposed) head.push_back("of it waiting, ms");
  if (comparison.target) {
    head.push_back("s to " + metric + " " + number_text("%.5g", comparison.target));
  }
  for (const std::string& title : {std::string("sent per step"), "last " + metric, "best " + metric,
                                   std::string("speed-up per step")}) {
    head.push_back(title);
  }
  if (comparison.target) head.push_back("speed-up to target");
  // Braces around one value are that value with one compiler, and a list of it with another.
  Json table = Json::array();
  table.push_back(std::move(head));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const TrainRun& run = runs[i];
    const ComparedRun& row = comparison.rows[i];
    Json cells = {run.name, std::to_string(run.steps), number_text("%.2f", run.step_ms)};
    if (exposed) cells.push_back(number_text("%.2f", run.exposed_ms));
    if (comparison.target) cells.push_back(number_text("%.2f", row.seconds_to_target));
    cells.push_back(bytes_text(run.wire_bytes_per_step));
    cells.push_back(number_text("%.5g", run.metric_value));
    cells.push_back(number_text("%.5g", row.best_value));
    cells.push_back(number_text("%.2f ×", row.step_speedup));
    if (comparison.target) cells.push_back(number_text("%.2f ×", row.target_speedup));
    table.push_back(std::move(cells));
  }
  return table;
}

/// The best of the others against the first run, in a sentence.
std::string headline_of(const std::vector<TrainRun>& runs, const RunComparison& comparison) {
  if (runs.size() < 2) return {};
  const auto speedup = [&](std::size_t i) {
    const ComparedRun& row = comparison.rows[i];
    return (comparison.target ? row.target_speedup : row.step_speedup).value_or(0.0);
  };
  std::size_t best = 1;
  for (std::size_t i = 2; i < runs.size(); ++i) {
    if (speedup(i) > speedup(best)) best = i;
  }
  const std::string goal = comparison.target ? "reached " + runs.front().metric + " " +
                                                   number_text("%.5g", comparison.target)
                                             : "made a step";
  const std::string& first = runs.front().name;
  if (speedup(best) <= 1.0) return "No run " + goal + " sooner than \"" + first + "\".";
  return "\"" + runs[best].name + "\" " + goal + " " + number_text("%.2f", speedup(best)) +
         " times as fast as \"" + first + "\".";
}

/// What all runs share.
std::string setting_of(const std::vector<TrainRun>& runs) {
  std::string text;
  for (const auto& entry : runs.front().setting) {
    if (entry.first == "codec" && runs.size() > 1) continue;
    if (any(runs, [&](const TrainRun& run) { return run.set(entry.first) != entry.second; })) {
      continue;
    }
    text.append(text.empty() ? "" : " · ").append(entry.first).append(" ").append(entry.second);
  }
  return text;
}

Json points_of(const TrainRun& run) {
  const auto or_null = [](std::optional<double> value) {
    return value ? Json(*value) : Json(nullptr);
  };
  const std::size_t stride = run.history.size() / kMostPoints + 1;
  Json points = Json::array();
  for (std::size_t i = 0; i < run.history.size(); ++i) {
    const TrainPoint& point = run.history[i];
    if (i % stride != 0 && i + 1 != run.history.size() && !point.metric_value) continue;
    points.push_back({point.step, point.seconds, or_null(point.loss), or_null(point.metric_value)});
  }
  return points;
}

Json to_json(const TrainRun& run) {
  Json spans = Json::array();
  for (const TrainSpan& span : run.spans) {
    spans.push_back({span.lane, span.action, span.tensor, span.start_us, span.end_us});
  }
  std::string source = run.file;
  if (!run.date.empty()) source += ", " + run.date;
  if (!run.machine.empty()) source += ", " + run.machine;
  return {{"name", run.name},
          {"metric", run.metric},
          {"bytes", run.wire_bytes_per_step},
          {"bytes_text", bytes_text(run.wire_bytes_per_step)},
          {"plan", run.plan},
          {"source", std::move(source)},
          {"command", run.command},
          {"points", points_of(run)},
          {"spans", std::move(spans)}};
}

}  // namespace

std::string runs_page(const std::vector<TrainRun>& runs, const RunComparison& comparison) {
  Json data = {{"title", runs.size() == 1 ? "A training run"
                                          : std::to_string(runs.size()) + " training runs"},
               {"headline", headline_of(runs, comparison)},
               {"setting", setting_of(runs)},
               {"notes", comparison.notes},
               {"target", comparison.target ? Json(*comparison.target) : Json(nullptr)},
               {"table", table_of(runs, comparison)},
               {"runs", Json::array()}};
  for (const TrainRun& run : runs) data["runs"].push_back(to_json(run));
  return with_data(std::string(kStyle) + kWords + kCurves + kLanes, data);
}

}  // namespace gradpress::cli
