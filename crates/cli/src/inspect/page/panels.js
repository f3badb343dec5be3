// ---- Selection, search and filter.

function select(node, how = {}) {
  ui.selected = node;
  ui.slot = null;
  if (ui.matches && node) ui.matchAt = ui.matches.found.indexOf(node);
  refresh(); // before the view moves: the panel may take room from the canvas
  if (node && ui.listed) scrollToRow(node.order);
  else if (node?.box && (how.center || hidden(node.box))) center(node.box, how.atOnce);
  const method = ui.method !== firstMethod() ? `m=${ui.method}&` : '';
  try { history.replaceState(null, '', node ? `#${method}n=${node.pos}` : '#'); } catch { /* where it is forbidden, the address just stays */ }
}
function selectSlot(slot) {
  Object.assign(ui, { selected: null, slot });
  refresh();
}
function refresh() {
  showDetail();
  showFound();
  if (ui.listed) drawList();
  redraw();
}
function haystack(node) {
  const names = [...node.reads, ...node.writes].map(slot => ui.model.tensors.get(slot)?.name || '');
  return node.hay ??= [node.op, node.pos, node.raw.text, ...names, plain(node.raw.fields ?? '')].join(' ').toLowerCase();
}
function search() {
  const words = ui.query.toLowerCase().split(/\s+/).filter(Boolean), { filter, model } = ui;
  ui.matches = null;
  ui.matchAt = -1;
  if (model && (words.length || filter)) {
    // A slot or position is meant whole: t1 is not t12.
    const hit = (node, word) => /^[tv]\d+$/.test(word) ? node.reads.includes(word) || node.writes.includes(word)
      : /^\d+\.\d+$/.test(word) && node.pos === word || haystack(node).includes(word);
    const found = model.order.filter(node => (!filter || node[filter.by] === filter.value) && words.every(word => hit(node, word)));
    ui.matches = { found, set: new Set(found) };
    if (ui.selected) ui.matchAt = found.indexOf(ui.selected);
  }
  refresh();
}
function setFilter(by, value, label) {
  const same = ui.filter && ui.filter.by === by && ui.filter.value === value;
  ui.filter = same || by == null ? null : { by, value, label };
  markFilter();
  search();
}
function markFilter() {
  const on = ui.filter && `${ui.filter.by} ${ui.filter.value}`;
  document.querySelectorAll('[data-filter]').forEach(b => b.setAttribute('aria-pressed', String(b.dataset.filter === on)));
}
function showFound() {
  const { matches, matchAt, filter } = ui;
  const n = matches?.found.length;
  $('found').textContent = !matches ? '' : matchAt >= 0 ? `${count(matchAt + 1)} of ${count(n)}` : n ? `${count(n)} match${n > 1 ? 'es' : ''}` : 'no match';
  $('prev').disabled = $('next').disabled = !matches?.found.length;
  $('filter').hidden = !filter;
  $('filter').textContent = filter ? `${filter.label}  ×` : '';
}
/** To the next match, or, where nothing is searched for, to the next instruction. */
function step(by) {
  const all = ui.matches ? ui.matches.found : ui.model?.order || [];
  if (!all.length) return;
  let at = ui.selected ? all.indexOf(ui.selected) : -1;
  // The selection may lie between two matches: go on from there.
  if (at < 0 && ui.selected) at = all.findIndex(node => node.order > ui.selected.order) - (by > 0 ? 1 : 0);
  if (at < -1) at = all.length - 1;
  select(all[(at + by + (at < 0 && by < 0 ? 1 : 0) + all.length) % all.length], { center: true });
}
function clearAll() {
  ui.query = $('search').value = '';
  ui.selected = ui.slot = null;
  setFilter(null);
  select(null);
}

// ---- The panel about the selection.

function nodeLink(node, note) {
  const link = el('button', { class: 'link mono', click: () => select(node, { center: true }) }, `${node.pos}  ${node.op}`);
  return el('div', { class: 'ref' }, link, ' ', el('span', { class: 'muted mono' }, note));
}
function tensorText(slot) {
  const tensor = ui.model.tensors.get(slot);
  if (!tensor) return '';
  const size = tensor.bytes != null ? bytes(tensor.bytes) : '';
  return [clean(tensor.name), tensor.role, clean(tensor.dtype, 20), shapeText(tensor.shape), size].filter(Boolean).join('  ');
}
/** A field's value; a slot in it leads to who wrote it and says which tensor it is. */
function valueParts(node, value, top = true) {
  if (isSlot(value)) {
    const from = node.producers.find(p => p.slot === value)?.node, known = tensorText(value);
    const link = (title, click) => el('button', { class: 'link mono', title, click }, value);
    return [from ? link(`written by ${from.pos}`, () => select(from, { center: true }))
      : known ? link('about this tensor', () => selectSlot(value)) : el('span', { class: 'mono' }, value),
    known ? el('span', { class: 'muted mono' }, ` ${known}`) : ''];
  }
  if (Array.isArray(value) && value.some(isSlot) && value.length <= 64) {
    return ['[', ...value.flatMap((part, i) => [i ? ', ' : '', ...valueParts(node, part, false)]), ']'];
  }
  const text = typeof value === 'string' ? value : plain(value);
  if (top && text.includes('\n')) return [el('pre', { class: 'mono' }, clean(text, 20000))];
  return [el('span', { class: 'mono' }, clean(text, 2000))];
}
function detailHead(color, title, note) {
  return el('header', {}, dot(color), el('strong', {}, title), el('span', { class: 'muted mono' }, note),
    el('button', { title: 'Close (Esc)', 'aria-label': 'Close', click: () => select(null) }, '×'));
}
const MOST = 200; // links in one list
function section(title, things, show) {
  if (!things.length) return [];
  const more = things.length - MOST;
  return [el('h2', {}, `${title} (${count(things.length)})`), ...things.slice(0, MOST).map(show), more > 0 ? el('div', { class: 'muted' }, `and ${count(more)} more`) : ''];
}
function showDetail() {
  const { selected: node, slot, model } = ui, panel = $('detail'), wasHidden = panel.hidden;
  panel.hidden = !node && slot == null;
  if (node) panel.replaceChildren(...nodeDetail(node, model).filter(Boolean));
  else if (slot != null) panel.replaceChildren(...slotDetail(slot, model).filter(Boolean));
  if (wasHidden !== panel.hidden) redraw();
}
function nodeDetail(node, model) {
  const fields = entries(node.raw.fields), runs = list(node.raw.chains).map(c => model.chains[c]).filter(c => c?.nodes.length);
  return [
    detailHead(solid(node.cat), node.op, node.pos),
    el('div', { class: 'muted' }, `${CATEGORIES[node.cat][0]}, instruction ${count(node.index)} of chain ${node.chain}`),
    el('pre', { class: 'mono' }, clean(node.raw.text, 4000)),
    fields.length ? el('h2', {}, 'Fields') : '',
    el('div', { class: 'pairs' }, fields.flatMap(([name, value]) => [el('span', {}, clean(name, 80)), el('div', {}, valueParts(node, value))])),
    ...section('Producers', node.producers, p => nodeLink(p.node, clean(p.slot, 20))),
    ...section('Consumers', node.consumers, p => nodeLink(p.node, clean(p.slot, 20))),
    ...section('Runs', runs, c => nodeLink(c.nodes[0], `starts chain ${c.index}, ${count(c.nodes.length)} instructions`)),
    ...section('Run by', [model.chains[node.chain].runner].filter(Boolean), by => nodeLink(by, '')),
  ];
}
function slotDetail(slot, model) {
  const tensor = model.tensors.get(slot) || {}, writers = model.chains.flatMap(chain => chain.sinks.filter(s => s.slot === slot).flatMap(s => s.by));
  const rows = [['name', clean(tensor.name)], ['role', tensor.role], ['type', clean(tensor.dtype, 40)], ['shape', shapeText(tensor.shape)],
    ['size', tensor.bytes != null ? bytes(tensor.bytes) : '']].filter(row => row[1]);
  return [
    detailHead(colors[endColor({ role: tensor.role || 'input' })], tail(tensor.name || slot, 80), clean(slot, 20)),
    el('h2', {}, 'Tensor'),
    el('div', { class: 'pairs' }, rows.flatMap(([name, value]) => [el('span', {}, name), el('span', { class: 'mono' }, value)])),
    ...section('Read by', model.order.filter(n => n.sources.includes(slot) || n.constants.includes(slot)), n => nodeLink(n, '')),
    ...section('Last written by', writers, n => nodeLink(n, '')),
  ];
}

// ---- The list view: only the rows in sight exist.

const ROW = 22;
function drawList() {
  const box = $('list'), order = ui.model?.order || [];
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 8), last = Math.min(order.length, first + Math.ceil(box.clientHeight / ROW) + 16);
  const rows = order.slice(first, last).map((node, i) => {
    const state = node === ui.selected ? ' on' : ui.matches ? (ui.matches.set.has(node) ? ' hit' : ' off') : '';
    const props = { class: 'row' + state, role: 'option', 'aria-selected': String(node === ui.selected), style: { top: `${(first + i) * ROW}px` }, click: () => select(node) };
    const text = '    '.repeat(node.depth) + clean(node.raw.text || node.op, 400).replace(/\s+/g, ' ');
    return el('div', props, el('span', {}, node.pos), dot(solid(node.cat)), text);
  });
  box.replaceChildren(el('div', { style: { height: `${order.length * ROW}px` } }), ...rows);
}
function scrollToRow(at) {
  const box = $('list'), y = at * ROW;
  if (y < box.scrollTop + ROW || y > box.scrollTop + box.clientHeight - 2 * ROW) box.scrollTop = y - box.clientHeight / 2;
}
function showView(listed) {
  ui.listed = listed;
  $('list').hidden = !listed;
  canvas.hidden = mini.hidden = $('status').hidden = listed || !ui.scene;
  $('asGraph').setAttribute('aria-pressed', String(!listed));
  $('asList').setAttribute('aria-pressed', String(listed));
  if (listed) { drawList(); if (ui.selected) scrollToRow(ui.selected.order); }
  else if (ui.selected?.box && ui.scene) center(ui.selected.box, true);
  redraw();
}

// ---- The summary.

function sizes(title, part) {
  if (!part || !part.tensors && !part.bytes) return [];
  const kinds = entries(part.by_dtype).sort((a, b) => b[1] - a[1]), total = Number(part.bytes) || 1;
  const color = i => `hsl(${(217 + i * 67) % 360} 60% ${dark ? 60 : 50}%)`;
  return [el('h2', {}, title), el('div', {}, `${bytes(part.bytes)} in ${count(part.tensors)} tensor${part.tensors === 1 ? '' : 's'}`),
    el('div', { class: 'bar' }, kinds.map(([, n], i) => el('i', { style: { width: `${100 * n / total}%`, background: color(i) } }))),
    el('div', { class: 'keys muted' }, kinds.map(([name, n], i) => el('span', {}, dot(color(i)), `${clean(name, 24)} ${bytes(n)}`)))];
}
function inOut(title, things) {
  const note = t => [t.kind === 'tensor' ? '' : clean(t.kind, 20), clean(t.dtype, 20), shapeText(t.dims || t.shape)].filter(Boolean).join(' ');
  const line = t => el('div', { class: 'io' }, clean(t.name, 120) || '(unnamed)', ' ', el('span', { class: 'muted mono' }, note(t)));
  return things.length ? [el('h2', {}, title), ...things.map(line)] : [];
}
function histogram(graph) {
  const kinds = entries(graph.nodes).map(([op, n]) => [shortOp(op), Number(n)]).sort((a, b) => b[1] - a[1]), most = kinds[0]?.[1] || 1;
  const per = new Map();
  for (const [op, n] of kinds) per.set(category(op), (per.get(category(op)) || 0) + n);
  const button = (by, value, label, ...kids) => {
    const click = () => setFilter(by, value, label);
    return el('button', { 'data-filter': `${by} ${value}`, 'aria-pressed': 'false', title: `Highlight ${label}`, click }, ...kids);
  };
  const cats = [...per.keys()].sort((a, b) => per.get(b) - per.get(a));
  const bar = (op, n) => el('i', { style: { background: solid(category(op)), width: `${100 * n / most}%` } });
  return !kinds.length ? [] : [el('h2', {}, `Instructions (${count(graph.node_count)})`),
    el('div', { class: 'legend' }, cats.map(cat => button('cat', cat, CATEGORIES[cat][0], dot(solid(cat)), CATEGORIES[cat][0]))),
    el('div', { class: 'hist' }, kinds.map(([op, n]) => button('op', op, op, el('span', {}, op), bar(op, n), el('b', {}, count(n)))))];
}
function showSummary() {
  const methods = list(data.methods), method = methods[ui.method] || {}, graph = method.graph, meta = entries(data.metadata);
  const names = (title, values) => {
    const text = [...new Set(list(values))].map(v => clean(v, 100)).join(', ');
    return text ? [el('h2', {}, title), el('div', { class: 'mono' }, text)] : [];
  };
  const tab = (m, i) => el('button', { 'aria-pressed': String(i === ui.method), click: () => openMethod(i) }, clean(m.name, 60) || '(unnamed)');
  const pair = ([key, value]) => [el('span', {}, clean(key, 120)), el('span', { class: 'mono' }, clean(plain(value), 400))];
  const parts = [
    el('h1', {}, clean(data.file, 200) || '(unnamed)'),
    el('div', { class: 'muted' }, `${bytes(data.file_bytes)}, shown by ptero ${clean(data.ptero, 40)}`),
    data.problem ? el('div', { class: 'problem', role: 'alert' }, el('strong', {}, 'Does not verify. '), clean(data.problem, 600)) : '',
    methods.length > 1 ? el('div', { class: 'tabs' }, methods.map(tab)) : el('h2', {}, `Method ${clean(method.name, 80)}`),
    ...inOut('Inputs', list(method.inputs)), ...inOut('Outputs', list(method.outputs)),
    ...names('Delegates', method.delegates), ...names('Portable operators', method.kernels),
    ...(graph?.sampling ? [el('h2', {}, 'Sampling'), el('div', {}, clean(graph.sampling, 600))] : []),
    ...sizes('Weights', graph?.weights), ...sizes('State', graph?.state),
    ...names('Foreign kernels', graph?.foreign_kernels), ...(graph ? histogram(graph) : []),
    ...(meta.length ? [el('h2', {}, 'Metadata'), el('div', { class: 'pairs' }, meta.flatMap(pair))] : []),
  ];
  $('summary').replaceChildren(...parts.filter(Boolean));
}

// ---- Opening a method.

const firstMethod = () => Math.max(0, list(data.methods).findIndex(m => m.graph));
function layOut() {
  const start = performance.now();
  ui.scene = buildScene(ui.model);
  const ms = Math.round(performance.now() - start);
  document.documentElement.dataset.layoutMs = ms;
  ui.restStatus = `${count(ui.model.order.length)} instructions, laid out in ${count(ms)} ms`;
  $('status').textContent = ui.restStatus;
  paintMini();
}
function openMethod(at) {
  const graph = list(data.methods)[at]?.graph;
  Object.assign(ui, { method: at, model: null, scene: null, selected: null, slot: null, filter: null, matches: null, hover: null });
  if (graph) ui.model = buildModel(graph);
  const empty = !ui.model?.order.length;
  if (!empty) layOut();
  $('empty').hidden = !empty;
  $('empty').textContent = graph ? 'This graph has no instructions.'
    : list(data.methods).length ? 'This method has no delegate graph to draw.' : 'This file has no methods.';
  showSummary();
  showView(ui.listed && !empty);
  if (!empty) fit();
  search();
}
/** Follows #n=0.117 and #m=1&n=0.117. */
function followLink(atOnce) {
  const link = new URLSearchParams(location.hash.slice(1)), method = link.has('m') ? Number(link.get('m')) : firstMethod();
  if (!ui.scene || method !== ui.method) openMethod(list(data.methods)[method] ? method : firstMethod());
  const [c, i] = (link.get('n') || '').split('.').map(Number), node = ui.model?.chains[c]?.nodes[i];
  if (node && node.order >= 0 && node !== ui.selected) select(node, { center: true, atOnce });
}
function setTheme(isDark) {
  dark = isDark;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  const style = getComputedStyle(document.documentElement);
  for (const name of ['bg', 'panel', 'text', 'muted', 'line', 'accent', 'band', 'edge', 'in', 'out', 'frame', 'ring', 'sans']) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
  if (ui.scene) paintMini();
  showSummary();
  markFilter();
  refresh();
}

// ---- Mouse, touch and keys.

function boxAt(e) {
  if (!ui.scene) return null;
  const r = canvas.getBoundingClientRect(), slack = 3 / view.k; // small boxes are hard to hit
  const x = view.x + (e.clientX - r.left) / view.k, y = view.y + (e.clientY - r.top) / view.k;
  const hit = b => Math.abs(x - b.x) <= b.boxW / 2 + slack && y >= b.y - slack && y <= b.y + b.boxH + slack;
  return inView(ui.scene, 'boxes', x - slack, y - slack, x + slack, y + slack).find(hit) || null;
}
function boxText(box) {
  if (box.node) return `${box.node.pos}  ${clean(box.node.raw.text || box.node.op, 240)}`;
  return box.kind === 'chip' ? `${box.label}: ${clean(box.from.raw.text, 200)}` : `${box.role} ${clean(box.slot, 20)}  ${tensorText(box.slot)}`;
}
function hover(box) {
  if (box === ui.hover) return;
  ui.hover = box;
  canvas.classList.toggle('over', !!box);
  $('status').textContent = box ? boxText(box) : ui.restStatus;
  redraw();
}
function pick(box) {
  if (!box) select(null);
  else if (box.node) select(box.node);
  else if (box.kind === 'chip') select(box.from, { center: true });
  else selectSlot(box.slot);
}
const fingers = new Map();
let travelled = 0;
canvas.addEventListener('pointerdown', e => {
  canvas.setPointerCapture(e.pointerId);
  if (!fingers.size) travelled = 0;
  fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
  flight++;
});
canvas.addEventListener('pointermove', e => {
  const was = fingers.get(e.pointerId);
  if (!was) return hover(boxAt(e));
  const other = [...fingers].find(([id]) => id !== e.pointerId)?.[1], now = { x: e.clientX, y: e.clientY };
  travelled += Math.hypot(now.x - was.x, now.y - was.y);
  const share = other ? .5 : 1; // of two fingers each moves the middle by half
  view.x -= (now.x - was.x) * share / view.k;
  view.y -= (now.y - was.y) * share / view.k;
  if (other) {
    const r = canvas.getBoundingClientRect(), spreadOf = p => Math.max(10, Math.hypot(p.x - other.x, p.y - other.y));
    zoom(spreadOf(now) / spreadOf(was), (now.x + other.x) / 2 - r.left, (now.y + other.y) / 2 - r.top);
  }
  canvas.classList.toggle('drag', travelled > 4);
  fingers.set(e.pointerId, now);
  redraw();
});
const lift = e => {
  const known = fingers.delete(e.pointerId);
  canvas.classList.remove('drag');
  if (known && e.type === 'pointerup' && !fingers.size && travelled < 5) pick(boxAt(e));
};
canvas.addEventListener('pointerup', lift);
canvas.addEventListener('pointercancel', lift);
canvas.addEventListener('pointerleave', () => hover(null));
canvas.addEventListener('wheel', e => {
  e.preventDefault();
  const r = canvas.getBoundingClientRect(), lines = e.deltaMode === 1 ? 16 : 1;
  zoom(Math.exp(-clamp(e.deltaY * lines, -240, 240) * (e.ctrlKey ? .01 : .0022)), e.clientX - r.left, e.clientY - r.top);
}, { passive: false });
const miniMove = e => {
  if (!e.buttons || !ui.scene) return;
  const r = mini.getBoundingClientRect(), { w, h } = size();
  const x = ui.scene.x + (e.clientX - r.left) / miniImage.scale, y = (e.clientY - r.top) / miniImage.scale;
  fly({ k: view.k, x: x - w / 2 / view.k, y: y - h / 2 / view.k }, true);
};
mini.addEventListener('pointerdown', e => { mini.setPointerCapture(e.pointerId); miniMove(e); });
mini.addEventListener('pointermove', miniMove);

const KEYS = {
  '+': () => zoom(1.3), '=': () => zoom(1.3), '-': () => zoom(1 / 1.3), '0': fit, Escape: clearAll,
  '/': () => $('search').select(), ArrowDown: () => step(1), ArrowRight: () => step(1), ArrowUp: () => step(-1), ArrowLeft: () => step(-1),
};
addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target === $('search') || !KEYS[e.key]) return;
  e.preventDefault();
  KEYS[e.key]();
});
let typing = 0;
$('search').addEventListener('input', e => { clearTimeout(typing); typing = setTimeout(() => { ui.query = e.target.value; search(); }, 90); });
$('search').addEventListener('keydown', e => {
  const by = { Enter: e.shiftKey ? -1 : 1, ArrowDown: 1, ArrowUp: -1 }[e.key];
  if (by) {
    e.preventDefault();
    clearTimeout(typing);
    if (ui.query !== e.target.value) { ui.query = e.target.value; search(); }
    step(by);
  } else if (e.key === 'Escape') { clearAll(); canvas.focus(); }
});
const buttons = {
  prev: () => step(-1), next: () => step(1), filter: () => setFilter(null), asGraph: () => showView(false), asList: () => showView(true),
  zoomIn: () => zoom(1.3), zoomOut: () => zoom(1 / 1.3), fit,
  fold: () => { ui.fold = !ui.fold; $('fold').setAttribute('aria-pressed', String(ui.fold)); if (ui.scene) { ui.hover = null; layOut(); fit(); } },
  theme: () => setTheme(!dark),
};
for (const [id, act] of Object.entries(buttons)) $(id).addEventListener('click', act);
$('list').addEventListener('scroll', drawList);
new ResizeObserver(() => { if (ui.listed) drawList(); redraw(); }).observe($('stage'));
addEventListener('hashchange', () => followLink(false));

// ---- Start.

const prefers = matchMedia('(prefers-color-scheme: dark)');
prefers.addEventListener('change', e => setTheme(e.matches));
setTheme(prefers.matches);
$('fold').setAttribute('aria-pressed', 'true');
try {
  data = JSON.parse($('data').textContent) || {};
  // A method that was split has several graphs; each gets its own tab.
  data.methods = list(data.methods).flatMap(m => [m, ...list(m.more_graphs).map((graph, i) => ({ ...m, graph, name: `${m.name} (${i + 2})` }))]);
  followLink(true);
} catch (error) {
  $('empty').hidden = false;
  $('empty').textContent = `The data in this page cannot be shown: ${clean(error.message, 200)}`;
}
