// ---- Text and elements. Everything from the file goes through text nodes or canvas text, never through markup.

const $ = id => document.getElementById(id);
const list = value => Array.isArray(value) ? value : [];
const entries = value => value && typeof value === 'object' ? Object.entries(value) : [];
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const count = n => Number(n || 0).toLocaleString('en-US');

/** Makes control characters and direction marks visible, and long text short. */
function clean(text, max = 300) {
  const s = String(text ?? '').slice(0, max + 1);
  const shown = s.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, '\ufffd');
  return s.length > max ? shown.slice(0, max) + '…' : shown;
}
/** The end of a name says more than its start: model.layers.0.mlp.up_proj.weight. */
function tail(text, max) {
  const s = clean(String(text ?? '').slice(-max - 1)).replace(/[\n\t]/g, ' ');
  return s.length > max ? '…' + s.slice(1 - max) : s;
}
function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB']; // of 1,000, as the text summary has them
  let at = 0;
  for (n = Number(n || 0); n >= 999.5 && at < 4; at++) n /= 1000;
  return n.toFixed(at && n < 99.5 ? 1 : 0) + ' ' + units[at];
}
function dim(d) {
  if (d && typeof d === 'object') return `${d.min ?? 0}…${d.max > 0 ? d.max : ''}`;
  return d === -1 ? '?' : clean(d, 20);
}
const shapeText = dims => Array.isArray(dims) ? `[${dims.slice(0, 12).map(dim).join(', ')}]` : '';
function plain(value) {
  if (Array.isArray(value)) return `[${value.map(plain).join(', ')}]`;
  if (value && typeof value === 'object') return `{${Object.entries(value).map(([k, v]) => `${k}: ${plain(v)}`).join(', ')}}`;
  return String(value);
}
function el(tag, props, ...kids) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key === 'click') made.addEventListener('click', value);
    else if (key === 'style') Object.assign(made.style, value);
    else made.setAttribute(key, value);
  }
  made.append(...kids.flat().filter(kid => kid != null && kid !== ''));
  return made;
}

const dot = color => el('i', { class: 'dot', style: { background: color } });

// ---- Categories of operators: what the colours mean.

const CATEGORIES = [ // name, hue, saturation, operators
  ['matmul', 217, 75, /^(Addmm|QuantizedMatmul|GatherMm|GatherQmm|Conv\w+|Matmul)$/],
  ['attention', 268, 62, /^(Sdpa|UpdateAndAttend|Rope)$/],
  ['norm', 158, 60, /^(RMSNorm|LayerNorm|Softmax)$/],
  ['integer', 85, 45, /(Int$|^SymSize$)/],
  ['shape', 215, 14, /^(ExpandDims|Tile|Squeeze|Split|BroadcastTo|Pad|Reshape|Transpose|AsStrided|Contiguous|Concatenate|Stack|Repeat|Roll|Flip|IdCopy|Noop)$/],
  ['reduction', 335, 62, /^(Arg\w+|LogSumExp|Sum|Mean|Var|Std|Prod|Max|Min|Median|Any|All|Cumsum|Sort|Partition)$/],
  ['indexing', 190, 70, /^(Take|TakeAlongAxis|Gather|Slice|SliceUpdate|IndexCopy|ScatterAdd|ARange|Tri|Tril|Triu)$/],
  ['random', 4, 70, /^Random\w*$/],
  ['control', 300, 50, /^(If|Scan)$/],
  ['foreign', 25, 30, /^MetalKernel$/],
  ['elementwise', 38, 80, /./],
];
const shortOp = op => clean(op, 60).replace(/(.)Node$/, '$1') || '(unnamed)';
const categoryCache = new Map();
function category(op) {
  if (!categoryCache.has(op)) categoryCache.set(op, Math.max(0, CATEGORIES.findIndex(row => row[3].test(op))));
  return categoryCache.get(op);
}
let dark = false;
const solid = cat => `hsl(${CATEGORIES[cat][1]} ${CATEGORIES[cat][2]}% ${dark ? 58 : 50}%)`;
const tint = cat => `hsl(${CATEGORIES[cat][1]} ${CATEGORIES[cat][2] * (dark ? .5 : .9)}% ${dark ? 19 : 95}%)`;
const rim = cat => `hsl(${CATEGORIES[cat][1]} ${CATEGORIES[cat][2] * .6}% ${dark ? 38 : 76}%)`;

// ---- From the JSON to linked nodes. Slots are reused, so who feeds whom follows from walking the chains in order.

const MAX_NESTING = 24; // deeper chains, which only a hostile file has, are drawn on their own
const MAX_WRITERS = 8; // of one slot, after branches; keeps a long row of hostile branches from piling up

/** The last writers of the slots in one chain, over those of the chain that runs it. */
class Writers {
  constructor(outer) { this.outer = outer; this.own = new Map(); }
  get(slot) {
    for (let at = this; at; at = at.outer) if (at.own.has(slot)) return at.own.get(slot);
    return undefined;
  }
}

function buildModel(graph) {
  const model = { tensors: new Map(), chains: [], order: [], roots: [] };
  for (const tensor of list(graph.tensors)) if (!model.tensors.has(tensor.slot)) model.tensors.set(tensor.slot, tensor);
  list(graph.chains).forEach((instructions, c) => {
    const nodes = list(instructions).map((raw, index) => makeNode(raw, c, index));
    model.chains.push({ index: c, nodes, links: [], guests: [], sinks: [], runner: null, depth: 0, placed: false, last: null });
  });
  const root = (c, label) => {
    const chain = model.chains[c];
    if (!chain || chain.placed) return;
    chain.placed = true;
    model.roots.push({ chain: c, label });
    const writers = new Writers(null);
    walk(model, chain, writers);
    for (const [slot, by] of writers.own) {
      const role = model.tensors.get(slot)?.role;
      if (role && role !== 'input') chain.sinks.push({ slot, by });
    }
  };
  root(graph.main_chain ?? 0, 'main');
  if (graph.init_chain != null) root(graph.init_chain, 'init');
  model.chains.forEach((_, c) => root(c, 'never run'));
  return model;
}

function makeNode(raw, chain, index) {
  const op = shortOp(raw.op);
  return { raw, op, cat: category(op), chain, index, pos: `${chain}.${index}`, order: -1, depth: 0,
    reads: [...new Set(list(raw.reads))], writes: [...new Set(list(raw.writes))],
    producers: [], consumers: [], constants: [], sources: [], frames: [], box: null };
}

function walk(model, chain, writers) {
  for (const node of chain.nodes) {
    node.order = model.order.push(node) - 1;
    node.depth = chain.depth;
    for (const slot of node.reads) {
      const from = writers.get(slot);
      if (from) from.forEach(producer => connect(model, producer, node, slot));
      else if (model.tensors.get(slot)?.role === 'constant') node.constants.push(slot);
      else node.sources.push(slot);
    }
    if (list(node.raw.chains).length) walkNested(model, chain, node, writers);
    for (const slot of node.writes) writers.own.set(slot, [node]);
  }
}

/** Chains are alternatives: each starts from the same state, and afterwards a slot may come from any of them. */
function walkNested(model, chain, node, writers) {
  const fed = new Writers(writers);
  node.writes.forEach(slot => fed.own.set(slot, [node])); // what a Scan hands to its body
  const chains = [...new Set(node.raw.chains)].map(c => model.chains[c]).filter(Boolean);
  chains.forEach((inner, at) => {
    if (inner.placed || chain.depth >= MAX_NESTING) return;
    Object.assign(inner, { placed: true, runner: node, depth: chain.depth + 1 });
    const name = node.op === 'If' ? ['then', 'else'][at] : node.op === 'Scan' ? 'body' : null;
    node.frames.push({ chain: inner.index, label: `${name ? name + ', ' : ''}chain ${inner.index}` });
    const own = new Writers(fed);
    walk(model, inner, own);
    inner.last = own.own;
  });
  const results = chains.map(inner => inner.last).filter(Boolean);
  for (const slot of new Set(results.flatMap(last => [...last.keys()]))) {
    const by = results.flatMap(last => last.get(slot) || writers.get(slot) || []);
    writers.own.set(slot, [...new Set(by)].slice(0, MAX_WRITERS));
  }
}

/** Records who feeds whom, and the same edge between the two nodes that stand for them in one common chain. */
function connect(model, from, to, slot) {
  from.consumers.push({ node: to, slot });
  to.producers.push({ node: from, slot });
  const up = node => model.chains[node.chain].runner;
  let a = from, b = to;
  while (a && a.depth > b.depth) a = up(a);
  while (b && b.depth > a.depth) b = up(b);
  while (a && b && a.chain !== b.chain) { a = up(a); b = up(b); }
  if (a && b && a !== b) model.chains[a.chain].links.push({ from: a, to: b, slot });
  if (b !== to) model.chains[to.chain].guests.push({ from, to, slot });
}
