// ---- Layout of one chain: layers, order inside layers, x, then columns. Nested chains are laid out first, as one box.

const GAP_X = 22, GAP_Y = 30, GUTTER = 90, FRAME_DROP = 36;
const TRUNK_PULL = 100; // against 1 of an edge to the next row: long edges are to be straight
const CLUSTER = 10; // rows over which readers of something far share one chip
const MOST_CHIPS = 12; // above one node; the panel lists all its producers
const measure = document.createElement('canvas').getContext('2d');
const fontCache = new Map();
function textWidth(text) {
  measure.font = OP_FONT;
  if (!fontCache.has(text)) fontCache.set(text, measure.measureText(text).width);
  return fontCache.get(text);
}
const OP_FONT = '600 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
const MONO_FONT = '10px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
const MONO_CHAR = 6.05;

const isSlot = value => typeof value === 'string' && /^[tv]\d+$/.test(value);
const UNIT = /^(alpha|beta|scale|step|stride|dilation|groups)/; // at 1 they do nothing
/** The settings of a node on one line: no slots, nothing that is off, no source text. */
function settings(node) {
  const parts = [];
  for (const [name, value] of entries(node.raw.fields)) {
    const dull = value == null || typeof value === 'boolean' || isSlot(value) || name.endsWith('chain_idx') || value === 1 && UNIT.test(name);
    if (dull || Array.isArray(value) && (!value.length || value.every(isSlot)) || typeof value === 'object' && !Array.isArray(value)) continue;
    const text = plain(value);
    if (text.length <= 40) parts.push(`${name}=${text}`);
  }
  const line = clean(parts.join('  '), 400).replace(/[\n\t]/g, ' ');
  return line.length > 38 ? line.slice(0, 37) + '…' : line;
}
/** One line per constant; names that only repeat the first one's path are shortened. */
function badges(model, node) {
  let path = null;
  const lines = node.constants.slice(0, 4).map(slot => {
    const tensor = model.tensors.get(slot), name = String(tensor.name || slot), shape = shapeText(tensor.shape);
    const cut = name.lastIndexOf('.') + 1, same = path !== null && cut && name.slice(0, cut) === path;
    path = path ?? name.slice(0, cut);
    return `${same ? '…' + tail(name.slice(cut), 24) : tail(name, Math.max(14, 38 - shape.length))} ${shape}`;
  });
  if (node.constants.length > 4) lines.push(`and ${node.constants.length - 4} more`);
  return lines;
}

const blank = () => ({ ups: [], downs: [], outs: [], inSegments: [], outSegments: [], row: 0, pos: 0, x: 0, y: 0, w: 6, h: 0 });
function nodeItem(model, node) {
  const item = { ...blank(), kind: 'node', node, preds: [], succs: [], chips: 0, frames: [],
    out: clean(node.writes.slice(0, 3).join(' '), 20), line: settings(node), badges: badges(model, node) };
  const chars = Math.max(item.line.length, ...item.badges.map(line => line.length + 1));
  item.boxW = item.w = Math.max(92, textWidth(node.op) + 34 + item.out.length * MONO_CHAR, chars * MONO_CHAR + 20);
  item.boxH = item.h = 22 + (item.line ? 13 : 0) + item.badges.length * 15 + (item.badges.length ? 3 : 0);
  item.frames = node.frames.map(frame => ({ ...frame, layout: layoutChain(model, frame.chain, 1.2, 1500) }));
  if (item.frames.length) {
    item.w = Math.max(item.w, item.frames.reduce((sum, f) => sum + f.layout.w + 20, -20));
    item.h += FRAME_DROP + Math.max(...item.frames.map(f => f.layout.h));
  }
  node.box = item;
  return item;
}
function endItem(model, slot, role) {
  const tensor = model.tensors.get(slot), label = tail(tensor?.name || slot, 30);
  const note = `${tensor?.name ? slot + ' ' : ''}${shapeText(tensor?.shape)}`;
  const w = Math.max(label.length, note.length) * MONO_CHAR + 30;
  return { ...blank(), kind: 'end', slot, role, label, note, w, boxW: w, h: note ? 30 : 20, boxH: note ? 30 : 20 };
}
function chipItem(from, slot) {
  const label = `${clean(slot, 12)} from ${from.pos}`, w = label.length * MONO_CHAR + 16;
  return { ...blank(), kind: 'chip', from, slot, label, w, boxW: w, h: 17, boxH: 17 };
}

/** Longest path from the sources. What no computed tensor holds up, such as a turned weight, sinks to its first reader. */
function assignRows(items) {
  for (const item of items) {
    const held = item.preds.filter(p => p.tensor);
    item.loose = !held.length || held.length === 1 && held[0].item.loose && item.succs.length < 2;
    item.row = item.preds.reduce((row, p) => Math.max(row, p.item.row + 1), 0);
  }
  for (let i = items.length - 1; i >= 0; i--) {
    const item = items[i];
    if (item.loose && item.succs.length) item.row = item.succs.reduce((row, s) => Math.min(row, s.row - 1), Infinity);
  }
}

/** How long an edge may be and still be drawn. A line over hundreds of rows tells less than a chip with its origin. */
function longest(links) {
  let limit = 40;
  const cost = () => links.reduce((sum, l) => sum + Math.min(limit, l.to.box.row - l.from.box.row), 0);
  while (limit > 4 && cost() > 150000) limit /= 2;
  return limit;
}

function connectItems(model, chain, items) {
  const asked = new Map(); // readers that get a small box above them instead of a long edge
  const ask = (key, make, node) => {
    if (!asked.has(key)) asked.set(key, { make, readers: new Set() });
    if (node.box.chips++ < MOST_CHIPS) asked.get(key).readers.add(node.box);
  };
  const limit = longest(chain.links), drawn = new Set();
  for (const { from, to, slot } of chain.links) {
    if (to.box.row - from.box.row > limit) ask(`${from.order} ${slot}`, () => chipItem(from, slot), to);
    else {
      const pair = from.order * 2 ** 26 + to.order; // two slots between the same nodes are one line
      if (!drawn.has(pair)) from.box.outs.push(to.box);
      drawn.add(pair);
    }
  }
  for (const { from, to, slot } of chain.guests) ask(`${from.order} ${slot}`, () => chipItem(from, slot), to);
  for (const node of chain.nodes) for (const slot of node.sources) {
    ask(slot, () => endItem(model, slot, model.tensors.get(slot)?.role || 'input'), node);
  }
  for (const { make, readers } of asked.values()) {
    let near = null;
    for (const reader of [...readers].sort((a, b) => a.row - b.row)) {
      if (!near || reader.row - near.row > CLUSTER) items.push(near = Object.assign(make(), { row: reader.row - 1 }));
      near.outs.push(reader);
    }
  }
  for (const { slot, by } of chain.sinks) {
    const writers = [...new Set(by.map(node => ancestorIn(model, node, chain.index)))].filter(Boolean);
    const end = endItem(model, slot, model.tensors.get(slot).role);
    end.row = Math.max(...writers.map(node => node.box.row)) + 1;
    writers.filter(node => end.row - node.box.row <= limit).forEach(node => node.box.outs.push(end));
    items.push(end);
  }
}
function ancestorIn(model, node, chain) {
  while (node && node.chain !== chain) node = model.chains[node.chain].runner;
  return node;
}

/** Rows of items. All edges that leave an item share one trunk of place holders, which keeps bundles thin. */
function makeRows(items) {
  const top = items.reduce((row, item) => Math.min(row, item.row), 0);
  const rows = [];
  const put = item => (rows[item.row] ??= []).push(item);
  const tie = (a, b) => { a.downs.push(b); b.ups.push(a); };
  for (const item of items) { item.row -= top; put(item); }
  for (const item of items) {
    const trunk = [item], end = item.outs.reduce((row, o) => Math.max(row, o.row), 0);
    for (let row = item.row + 1; row < end; row++) {
      const bend = { ...blank(), kind: 'bend', source: item, row, length: end - item.row };
      tie(trunk[trunk.length - 1], bend);
      trunk.push(bend);
      put(bend);
    }
    for (const out of item.outs) tie(trunk[out.row - item.row - 1], out);
  }
  return Array.from(rows, row => row || []);
}

function orderRows(rows) {
  rows.forEach(row => row.forEach((item, i) => { item.pos = i; }));
  const settle = (row, side) => {
    if (row.length < 2) return;
    for (const item of row) {
      const near = item[side];
      item.key = near.length ? near.reduce((sum, n) => sum + n.pos, 0) / near.length : item.pos;
    }
    row.sort((a, b) => a.key - b.key).forEach((item, i) => { item.pos = i; });
  };
  for (let sweep = 0; sweep < 4; sweep++) {
    rows.forEach(row => settle(row, 'ups'));
    for (let r = rows.length - 1; r >= 0; r--) settle(rows[r], 'downs');
  }
  rows.forEach(row => settle(row, 'ups'));
}

/** Puts a row as near to where it wants to be as order and widths allow: least squares by pooling neighbours. */
function placeRow(row, wish) {
  const blocks = [];
  let offset = 0;
  row.forEach((item, i) => {
    if (i) offset += (row[i - 1].w + item.w) / 2 + (item.kind === 'bend' || row[i - 1].kind === 'bend' ? GAP_X / 2 : GAP_X);
    item.offset = offset;
    const { at, weight } = wish(item);
    blocks.push({ at: at - offset, weight, size: 1 });
    while (blocks.length > 1 && blocks[blocks.length - 2].at > blocks[blocks.length - 1].at) {
      const b = blocks.pop(), a = blocks[blocks.length - 1];
      a.at = (a.at * a.weight + b.at * b.weight) / (a.weight + b.weight);
      a.weight += b.weight;
      a.size += b.size;
    }
  });
  let at = 0;
  for (const block of blocks) for (let k = 0; k < block.size; k++, at++) row[at].x = block.at + row[at].offset;
}
/** Whether an item is a side entry: nothing leads to it, so it must follow the main flow and not bend it. */
const entry = item => !(item.source || item).ups.length;
/** The middle of what an item is tied to on one side. */
function middle(item, side) {
  let sum = 0, weight = 0;
  for (const near of item[side]) {
    const pull = entry(near) || entry(item) ? .001 : item.kind === 'bend' || near.kind === 'bend' ? TRUNK_PULL : 1;
    sum += near.x * pull;
    weight += pull;
  }
  // Nodes give way to trunks and short trunks to long ones, so that the residual stream stays a line.
  return weight ? { at: sum / weight, weight: entry(item) ? .1 : item.kind === 'bend' ? TRUNK_PULL * item.length : 1 } : null;
}
function placeX(rows) {
  const stay = (item, weight) => ({ at: item.x, weight });
  const down = wish => rows.forEach(row => placeRow(row, wish));
  const up = wish => { for (let r = rows.length - 1; r >= 0; r--) placeRow(rows[r], wish); };
  down(() => ({ at: 0, weight: 1 }));
  for (let round = 0; round < 2; round++) {
    down(item => middle(item, 'ups') || stay(item, .01));
    up(item => middle(item, 'downs') || stay(item, .01));
  }
  // The last word is from above, so that trunks hang straight; then what has nothing above it moves over its readers.
  down(item => middle(item, 'ups') || stay(item, .01));
  up(item => entry(item) && middle(item, 'downs') || stay(item, entry(item) ? .01 : TRUNK_PULL));
}

/** Where each layer of the model starts, told by the names of its weights. */
function findBands(model, rows) {
  const first = new Map();
  rows.forEach((row, r) => row.forEach(item => {
    for (const slot of item.node?.constants || []) {
      const hit = /^(.{0,80}?(?:layers?|blocks?|h)[._]\d{1,4})[._]/.exec(model.tensors.get(slot).name || '');
      const key = hit && hit[1].replace(/^[0-9a-f]{4}\//, '');
      if (hit && !first.has(key)) first.set(key, { label: tail(key, 24), start: r, end: r });
      if (hit) first.get(key).end = r;
    }
  }));
  const bands = [...first.values()].sort((a, b) => a.start - b.start);
  bands.forEach((band, i) => { band.end = i + 1 < bands.length ? bands[i + 1].start : Math.min(band.end + 3, rows.length); });
  return bands.length > 1 ? bands.filter(band => band.end > band.start) : [];
}

/** Cuts the rows into columns of about one height, where few edges cross and preferably where a layer starts. */
function cutColumns(rows, heights, bandStarts, target, total) {
  const starts = [0];
  let height = 0, best = null, bestScore = Infinity, left = total; // a last column of a few boxes would look lost
  for (let r = 1; r < rows.length; r++) {
    height += heights[r - 1] + GAP_Y;
    left -= heights[r - 1] + GAP_Y;
    const crossing = rows[r].reduce((sum, item) => sum + item.ups.length, 0);
    const score = crossing - (bandStarts.has(r) ? 3 : 0) + Math.abs(height / target - 1) * 6;
    if (height > target * .75 && left > target * .35 && score < bestScore) { best = { r, left }; bestScore = score; }
    if (height <= target * 1.2 || !best) continue;
    starts.push(best.r);
    ({ r, left } = best);
    height = 0;
    best = null;
    bestScore = Infinity;
  }
  return starts;
}
/** Left and right end of the rows from `start` up to `end`. */
function extent(rows, start, end) {
  let left = Infinity, right = -Infinity;
  for (let r = start; r < end; r++) if (rows[r].length) {
    const first = rows[r][0], last = rows[r][rows[r].length - 1];
    left = Math.min(left, first.x - first.w / 2);
    right = Math.max(right, last.x + last.w / 2);
  }
  return left > right ? [0, 0] : [left, right];
}
/** The rows at which columns start. A deep graph as one column would be a thread. */
function columnStarts(rows, heights, bands, aspect, least) {
  const total = heights.reduce((sum, h) => sum + h + GAP_Y, 0), bandStarts = new Set(bands.map(band => band.start));
  let starts = [0], target = total;
  if (!ui.fold || total < least) return starts;
  for (let round = 0; round < 6; round++) {
    const width = starts.reduce((sum, start, i) => {
      const [left, right] = extent(rows, start, starts[i + 1] ?? rows.length);
      return sum + right - left + GUTTER;
    }, 0);
    const was = target;
    target = clamp(target * Math.sqrt(width / (target * aspect)), least / 2, total);
    if (target > total * .7) return [0];
    if (Math.abs(was / target - 1) < .05) break;
    starts = cutColumns(rows, heights, bandStarts, target, total);
  }
  return starts;
}

function layoutChain(model, c, aspect, least) {
  const chain = model.chains[c];
  const items = chain.nodes.map(node => nodeItem(model, node));
  for (const { from, to, slot } of chain.links) {
    to.box.preds.push({ item: from.box, tensor: slot[0] === 't' });
    from.box.succs.push(to.box);
  }
  assignRows(items);
  connectItems(model, chain, items);
  const rows = makeRows(items);
  orderRows(rows);
  placeX(rows);
  return finish(model, items, rows, aspect, least);
}

function finish(model, items, rows, aspect, least) {
  const heights = rows.map(row => row.reduce((h, item) => Math.max(h, item.h), 0));
  const bands = findBands(model, rows), starts = columnStarts(rows, heights, bands, aspect, least);
  const layout = { items, segments: [], bands: [], columns: [], w: 0, h: 0 }, place = [];
  starts.forEach((start, at) => {
    const end = starts[at + 1] ?? rows.length;
    const [left, right] = extent(rows, start, end);
    let y = GAP_Y;
    const column = { at, x: layout.w + (at ? 0 : 24), w: right - left, h: 0, crossings: 0 };
    for (let r = start; r < end; r++) {
      place[r] = { y, bottom: y + heights[r], column };
      for (const item of rows[r]) { item.x += column.x - left; item.y = y; }
      y += heights[r] + GAP_Y;
    }
    column.h = y;
    layout.columns.push(column);
    layout.w = column.x + column.w + (at + 1 < starts.length ? GUTTER : 24);
    layout.h = Math.max(layout.h, y);
  });
  makeSegments(layout, rows, place);
  bands.forEach((band, i) => cutBand(layout, band, i, place));
  return layout;
}
/** A band as one rectangle in each column that it touches. */
function cutBand(layout, band, parity, place) {
  let piece = null;
  for (let r = band.start; r < band.end; r++) {
    const { y, bottom, column } = place[r];
    if (piece?.column !== column) {
      piece = { column, label: band.label, parity, x: column.x - 16, w: column.w + 32, y: y - GAP_Y / 2, h: 0 };
      layout.bands.push(piece);
    }
    piece.h = bottom + GAP_Y / 2 - piece.y;
  }
}
/** Pieces of edges between neighbouring rows; `before` leads back along a trunk to the item that the edge leaves. */
function makeSegments(layout, rows, place) {
  rows.forEach((row, r) => row.forEach(item => item.ups.sort((a, b) => a.x - b.x).forEach((up, i) => {
    const a = place[r - 1], b = place[r], bend = up.kind === 'bend', many = item.ups.length;
    const port = many > 1 ? (i - (many - 1) / 2) * Math.min(12, (item.boxW - 16) / many) : 0;
    const segment = { x1: up.x, y0: bend ? a.y : up.y + up.h, y1: a.bottom, x2: item.x + port, y2: b.y, jump: null, seen: 0,
      from: bend ? up.source : up, before: bend ? up.inSegments[0] : null };
    if (a.column !== b.column) {
      const shift = (a.column.crossings++ % 8) * 6;
      segment.jump = { low: a.bottom + 12 + shift / 2, x: a.column.x + a.column.w + GUTTER / 2 - 12 + shift, high: b.y - 12 - shift / 2 };
    }
    item.inSegments.push(segment);
    segment.from.outSegments.push(segment);
    layout.segments.push(segment);
  })));
}

// ---- The scene: everything at its final place, and a grid to find what is in view.

const CELL = 700;
function buildScene(model) {
  const scene = { boxes: [], segments: [], frames: [], bands: [], chips: new Map(), large: [], grid: new Map(), x: 0, y: 0, w: 1, h: 1 };
  let side = 0, right = 0;
  model.roots.forEach(({ chain, label }, at) => {
    const layout = layoutChain(model, chain, size().w / size().h, 1400);
    // The main chain at the origin; the others, which are small, stacked to its left.
    const x = at ? -layout.w - 70 : 0, y = at ? side : 0;
    if (at) side += layout.h + 70;
    right = Math.max(right, x + layout.w);
    spread(scene, layout, x, y, 0);
    const named = at || model.roots.length > 1;
    if (named) scene.frames.push({ x, y, w: layout.w, h: layout.h, label: `${label}, chain ${chain}`, depth: 0 });
    scene.x = Math.min(scene.x, x);
    scene.w = right - scene.x;
    scene.h = Math.max(scene.h, y + layout.h);
  });
  scene.boxes.forEach(box => index(scene, 'boxes', box, box.x - box.boxW / 2, box.y, box.x + box.boxW / 2, box.y + box.boxH));
  for (const s of scene.segments) {
    if (s.jump) scene.large.push(s);
    else index(scene, 'segments', s, Math.min(s.x1, s.x2), s.y0, Math.max(s.x1, s.x2), s.y2);
  }
  return scene;
}
function spread(scene, layout, dx, dy, depth) {
  for (const item of layout.items) {
    item.x += dx; item.y += dy; item.seen = 0;
    scene.boxes.push(item);
    if (item.kind === 'chip') {
      if (!scene.chips.has(item.from)) scene.chips.set(item.from, []);
      scene.chips.get(item.from).push(item);
    }
    let x = item.x - (item.frames || []).reduce((sum, f) => sum + f.layout.w + 20, -20) / 2;
    for (const frame of item.frames || []) {
      const { w, h } = frame.layout, y = item.y + item.boxH + FRAME_DROP;
      scene.frames.push({ x, y, w, h, label: frame.label, depth: depth + 1, from: item });
      spread(scene, frame.layout, x, y, depth + 1);
      x += w + 20;
    }
  }
  for (const s of layout.segments) {
    s.x1 += dx; s.x2 += dx; s.y0 += dy; s.y1 += dy; s.y2 += dy;
    if (s.jump) { s.jump.x += dx; s.jump.low += dy; s.jump.high += dy; }
    scene.segments.push(s);
  }
  for (const band of layout.bands) scene.bands.push({ ...band, x: band.x + dx, y: band.y + dy });
}
const cellKey = (cx, cy) => cx * 67108864 + cy;
function index(scene, kind, thing, x1, y1, x2, y2) {
  const a = Math.floor(x1 / CELL), b = Math.floor(x2 / CELL), c = Math.floor(y1 / CELL), d = Math.floor(y2 / CELL);
  if ((b - a + 1) * (d - c + 1) > 40 && kind === 'segments') return void scene.large.push(thing);
  for (let cx = a; cx <= b; cx++) for (let cy = c; cy <= d; cy++) {
    const key = cellKey(cx, cy);
    if (!scene.grid.has(key)) scene.grid.set(key, { boxes: [], segments: [] });
    scene.grid.get(key)[kind].push(thing);
  }
}
let stamp = 0;
/** What lies in the rectangle, each thing once. When most of the scene is in view, walking the cells would only cost. */
function inView(scene, kind, x1, y1, x2, y2) {
  const a = Math.floor(x1 / CELL), b = Math.floor(x2 / CELL), c = Math.floor(y1 / CELL), d = Math.floor(y2 / CELL);
  if ((b - a + 1) * (d - c + 1) > scene.grid.size) return scene[kind];
  const found = [];
  stamp++;
  for (let cx = a; cx <= b; cx++) for (let cy = c; cy <= d; cy++) {
    for (const thing of scene.grid.get(cellKey(cx, cy))?.[kind] || []) {
      if (thing.seen !== stamp) { thing.seen = stamp; found.push(thing); }
    }
  }
  return found;
}
