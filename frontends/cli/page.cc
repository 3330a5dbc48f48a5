#include "page.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace gradpress::cli {

namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gradpress</title><style>
body{font:14px system-ui,sans-serif;margin:24px;color:#222}h1{font-size:20px}h2{font-size:16px}
svg{background:#fafafa;border:1px solid #ddd;width:100%;user-select:none}
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #eee}
td.n{text-align:right;font-variant-numeric:tabular-nums}
#tip{position:fixed;display:none;background:#222;color:#fff;padding:6px 8px;border-radius:4px;
pointer-events:none;font-size:12px;white-space:pre}.bar{background:#5b8;height:12px}
</style></head><body>
)";

constexpr const char* kPlanBody = R"(<h1 id="title"></h1><p id="verdict"></p>
<svg id="lanes" role="img" aria-label="timeline"></svg>
<p>Wheel: zoom. Drag: move. Double click: all. Point at a task for its story.</p>
<h2>Strategies</h2><table id="compare"></table>
<h2>Tensors</h2><table id="tensors"></table><div id="tip"></div>
<script>
const ns='http://www.w3.org/2000/svg',byId=id=>document.getElementById(id);
const colour={backward:'#9ab',encode:'#e8a33d',decode:'#c96',comm:'#5b8fd6'};
byId('title').textContent=data.title;byId('verdict').textContent=data.verdict;
const end=Math.max(1,...data.spans.map(s=>s[3]));let from=0,to=end;
const svg=byId('lanes'),tip=byId('tip'),floor=22+40*data.lanes.length;
const left=20+7*Math.max(...data.lanes.map(name=>name.length));svg.setAttribute('height',floor+8);
function el(name,attributes,parent){const e=document.createElementNS(ns,name);
 for(const k in attributes)e.setAttribute(k,attributes[k]);parent.appendChild(e);return e}
function draw(){const w=svg.clientWidth||1000,x=t=>left+(w-left-10)*(t-from)/(to-from);
 svg.replaceChildren();
 data.lanes.forEach((name,i)=>{el('text',{x:6,y:32+i*40,'font-size':12},svg).textContent=name});
 for(let i=0;i<=8;i++){const t=from+(to-from)*i/8;
  el('text',{x:x(t)-12,y:floor,'font-size':10,fill:'#666'},svg).textContent=(t/1000).toFixed(1)+' ms'}
 for(const s of data.spans){if(s[3]<from||s[2]>to)continue;
  const a=Math.max(left,x(s[2])),b=Math.min(w-10,x(s[3]));
  const r=el('rect',{x:a,y:14+s[0]*40,width:Math.max(.5,b-a),height:28,fill:colour[s[1]],
   stroke:'#fff','stroke-width':.3},svg);
  r.addEventListener('mousemove',e=>{tip.style.display='block';
   tip.style.left=Math.min(e.clientX+12,innerWidth-320)+'px';tip.style.top=e.clientY+14+'px';
   tip.textContent=data.tensors[s[4]].name+'\n'+s[5]+'\n'+s[2].toFixed(1)+' to '+s[3].toFixed(1)
    +' µs ('+(s[3]-s[2]).toFixed(1)+' µs)'});
  r.addEventListener('mouseleave',()=>tip.style.display='none')}}
svg.addEventListener('wheel',e=>{e.preventDefault();const w=svg.clientWidth;
 const t=from+(to-from)*Math.max(0,(e.offsetX-left)/(w-left-10)),f=e.deltaY<0?.8:1.25;
 from=Math.max(0,t-(t-from)*f);to=Math.min(end,t+(to-t)*f);draw()},{passive:false});
let drag=null;svg.addEventListener('mousedown',e=>drag=[e.clientX,from,to]);
addEventListener('mouseup',()=>drag=null);
addEventListener('mousemove',e=>{if(!drag)return;
 let d=(drag[0]-e.clientX)/(svg.clientWidth-left-10)*(drag[2]-drag[1]);
 d=Math.max(-drag[1],Math.min(end-drag[2],d));from=drag[1]+d;to=drag[2]+d;draw()});
svg.addEventListener('dblclick',()=>{from=0;to=end;draw()});addEventListener('resize',draw);draw();
function row(table,cells,head){const tr=table.insertRow();for(const c of cells){
 const td=document.createElement(head?'th':'td');
 if(typeof c==='number'){td.className='n';td.textContent=c.toLocaleString('en')}
 else if(c instanceof Node)td.appendChild(c);else td.textContent=c;tr.appendChild(td)}}
const compare=byId('compare');row(compare,['strategy','iteration, ms',''],true);
const worst=Math.max(...data.compare.map(c=>c.iteration_us));
for(const c of data.compare){const bar=document.createElement('div');bar.className='bar';
 bar.style.width=300*c.iteration_us/worst+'px';row(compare,[c.name,c.iteration_us/1000,bar])}
const tensors=byId('tensors'),both=data.tensors.length>0&&data.tensors[0].measured;
const ends=t=>both?[t.predicted?+(t.predicted.done_us/1e3).toFixed(3):'',
 +(t.measured.done_us/1e3).toFixed(3)]:[];
row(tensors,['tensor','elements',...(both?['predicted end, ms','measured end, ms']:[]),'codec','bucket',
 'option'],true);
for(const t of data.tensors)row(tensors,[t.name,t.elements,...ends(t),t.codec,t.bucket,t.option]);
</script></body></html>
)";

constexpr const char* kSweepBody = R"(<h1 id="title"></h1>
<svg id="plot" height="360" role="img" aria-label="iteration time"></svg><div id="legend"></div>
<table id="points"></table><div id="tip"></div>
<script>
const ns='http://www.w3.org/2000/svg',byId=id=>document.getElementById(id);
byId('title').textContent=data.title;
const names=Object.keys(data.points[0].values);
const hues=names.map((_,i)=>`hsl(${i*360/names.length},60%,45%)`);
const svg=byId('plot'),tip=byId('tip'),w=svg.clientWidth||1000;
const xs=data.points.map(p=>data.log?Math.log2(p.x):p.x),lo=Math.min(...xs),hi=Math.max(...xs);
const top_=Math.max(...data.points.flatMap(p=>Object.values(p.values)));
const X=v=>60+(w-80)*(hi>lo?(v-lo)/(hi-lo):.5),Y=v=>330-310*v/top_;
function el(name,attributes){const e=document.createElementNS(ns,name);
 for(const k in attributes)e.setAttribute(k,attributes[k]);svg.appendChild(e);return e}
data.points.forEach((p,i)=>{const next=i+1<xs.length?X(xs[i+1]):X(xs[i])+20;
 el('rect',{x:X(xs[i]),y:20,width:Math.max(1,next-X(xs[i])),height:310,
  fill:hues[names.indexOf(p.best)],opacity:.08});
 el('text',{x:X(xs[i])-8,y:350,'font-size':11}).textContent=p.x});
names.forEach((n,i)=>{el('polyline',{fill:'none',stroke:hues[i],'stroke-width':2,
  points:data.points.map((p,j)=>X(xs[j])+','+Y(p.values[n])).join(' ')});
 data.points.forEach((p,j)=>{const c=el('circle',{cx:X(xs[j]),cy:Y(p.values[n]),r:4,fill:hues[i]});
  c.addEventListener('mousemove',e=>{tip.style.display='block';tip.style.left=e.clientX+12+'px';
   tip.style.top=e.clientY+12+'px';
   tip.textContent=n+'\n'+data.x+' '+p.x+'\n'+(p.values[n]/1000).toFixed(2)+' ms'});
  c.addEventListener('mouseleave',()=>tip.style.display='none')});
 const s=document.createElement('span');s.style.color=hues[i];s.textContent='■ '+n+'  ';
 byId('legend').appendChild(s)});
const table=byId('points');
for(const cells of [[data.x,...names,'fastest'],...data.points.map(p=>[p.x,
  ...names.map(n=>(p.values[n]/1000).toFixed(2)+' ms'),p.best])]){const tr=table.insertRow();
 for(const c of cells)tr.insertCell().textContent=c}
</script></body></html>
)";

constexpr const char* kRegionsBody = R"(<h1 id="title"></h1>
<p>Colour: the fastest strategy. Number: how much shorter its iteration is than without a codec,
or than the slowest strategy. Point at a cell for all times.</p>
<svg id="regions" role="img" aria-label="fastest strategy by region"></svg><div id="legend"></div>
<table id="points"></table><div id="tip"></div>
<script>
const ns='http://www.w3.org/2000/svg',byId=id=>document.getElementById(id);
byId('title').textContent=data.title;
const names=[...new Set(data.points.map(p=>p.best))];
const hues=names.map((_,i)=>`hsl(${i*360/names.length+200},55%,62%)`);
const svg=byId('regions'),tip=byId('tip'),w=svg.clientWidth||1000;
const cols=data.xs.length,rows=data.ys.length,cw=(w-100)/cols,ch=Math.max(22,Math.min(48,420/rows));
svg.setAttribute('height',rows*ch+50);
function el(name,attributes){const e=document.createElementNS(ns,name);
 for(const k in attributes)e.setAttribute(k,attributes[k]);svg.appendChild(e);return e}
const saved=p=>{const v=p.values,base=v.none===undefined?Math.max(...Object.values(v)):v.none;
 return 100*(1-v[p.best]/base)};
data.points.forEach((p,i)=>{const x=90+(i%cols)*cw,y=10+(rows-1-Math.floor(i/cols))*ch;
 const r=el('rect',{x,y,width:cw-1,height:ch-1,fill:hues[names.indexOf(p.best)]});
 r.addEventListener('mousemove',e=>{tip.style.display='block';
  tip.style.left=Math.min(e.clientX+12,innerWidth-320)+'px';tip.style.top=e.clientY+14+'px';
  tip.textContent=data.x+' '+p.x+', '+data.y+' '+p.y+'\n'+Object.entries(p.values)
   .sort((a,b)=>a[1]-b[1]).map(([n,us])=>n+': '+(us/1000).toFixed(2)+' ms').join('\n')});
 r.addEventListener('mouseleave',()=>tip.style.display='none');
 if(cw>34)el('text',{x:x+cw/2,y:y+ch/2+4,'text-anchor':'middle','font-size':11,
  'pointer-events':'none'}).textContent='-'+saved(p).toFixed(0)+'%'});
data.ys.forEach((v,i)=>{el('text',{x:82,y:10+(rows-1-i)*ch+ch/2+4,'text-anchor':'end',
 'font-size':11}).textContent=v});
data.xs.forEach((v,i)=>{el('text',{x:90+i*cw+cw/2,y:rows*ch+26,'text-anchor':'middle',
 'font-size':11}).textContent=v});
el('text',{x:90,y:rows*ch+44,'font-size':12}).textContent=data.y+' (up) by '+data.x+' (across)';
names.forEach((n,i)=>{const s=document.createElement('span');s.style.color=hues[i];
 s.textContent='■ '+n+'  ';byId('legend').appendChild(s)});
const table=byId('points'),all=Object.keys(data.points[0].values);
for(const cells of [[data.x,data.y,...all,'fastest'],...data.points.map(p=>[p.x,p.y,
  ...all.map(n=>(p.values[n]/1000).toFixed(2)+' ms'),p.best])]){const tr=table.insertRow();
 for(const c of cells)tr.insertCell().textContent=c}
</script></body></html>
)";

std::string page(const Json& data, const char* body) {
  return with_data(std::string(kHead) + body, data);
}

}  // namespace

const char* span_kind(plan::SpanKind kind) {
  switch (kind) {
    case plan::SpanKind::kBackward:
      return "backward";
    case plan::SpanKind::kEncode:
      return "encode";
    case plan::SpanKind::kDecode:
      return "decode";
    case plan::SpanKind::kComm:
      return "comm";
  }
  return "";
}

std::string plan_page(const Json& data) { return page(data, kPlanBody); }
std::string sweep_page(const Json& data) { return page(data, kSweepBody); }
std::string regions_page(const Json& data) { return page(data, kRegionsBody); }

std::string with_data(const std::string& html, const Json& data) {
  std::string json = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // "</" inside a text must not end the script.
  for (std::size_t at = json.find("</"); at != std::string::npos; at = json.find("</", at)) {
    json.replace(at, 2, "<\\/");
  }
  const std::size_t script = html.find("<script>") + 8;
  return html.substr(0, script) + "\nconst data=" + json + ";" + html.substr(script);
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.flush();
  if (file) return {};
  return Status::error(Code::kInvalidArgument, path,
                       ": cannot be written: ", std::generic_category().message(errno));
}

}  // namespace gradpress::cli
