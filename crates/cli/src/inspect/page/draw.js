// ---- State of the page, and the view onto the scene.

let data = {};
const ui = { method: 0, model: null, scene: null, fold: true, listed: false, hover: null,
  selected: null, slot: null, query: '', filter: null, matches: null, matchAt: -1 };
const view = { x: 0, y: 0, k: 1 };
const canvas = $('canvas'), ctx = canvas.getContext('2d'), mini = $('mini');
let colors = {}, miniImage = null, pending = false, flight = 0;

function redraw() {
  if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); }
}
const size = () => ({ w: canvas.clientWidth || 1, h: canvas.clientHeight || 1 });
function fitScale() {
  const { w, h } = size(), scene = ui.scene;
  return Math.min(w / (scene.w + 80), h / (scene.h + 80), 1.4);
}
function fit() {
  if (!ui.scene) return;
  const { w, h } = size(), { scene } = ui, k = fitScale();
  fly({ k, x: scene.x + scene.w / 2 - w / 2 / k, y: scene.h * k < h * .8 ? scene.h / 2 - h / 2 / k : -40 }, true);
}
function zoom(factor, px = size().w / 2, py = size().h / 2) {
  if (!ui.scene) return;
  const k = clamp(view.k * factor, fitScale() * .6, 4);
  view.x += px / view.k - px / k;
  view.y += py / view.k - py / k;
  view.k = k;
  flight++;
  redraw();
}
/** Moves the view; in steps when that helps the eye to follow. */
function fly(to, atOnce) {
  const mine = ++flight, from = { ...view }, start = performance.now();
  if (atOnce || matchMedia('(prefers-reduced-motion: reduce)').matches) { Object.assign(view, to); return redraw(); }
  const step = now => {
    if (mine !== flight) return;
    const t = clamp((now - start) / 220, 0, 1), ease = t * (2 - t);
    for (const key of ['x', 'y', 'k']) view[key] = from[key] + (to[key] - from[key]) * ease;
    draw();
    if (t < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
function hidden(box) {
  const { w, h } = size(), x = (box.x - view.x) * view.k, y = (box.y - view.y) * view.k;
  return x < 0 || y < 0 || x > w || y > h;
}
function center(box, atOnce) {
  const { w, h } = size(), k = Math.max(view.k, .8);
  fly({ k, x: box.x - w / 2 / k, y: box.y + box.boxH / 2 - h / 2 / k }, atOnce);
}

// ---- Drawing.

function resize() {
  const ratio = devicePixelRatio || 1, { w, h } = size();
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  return ratio;
}
function draw() {
  const { scene } = ui;
  if (!scene || ui.listed) return;
  const ratio = resize(), { w, h } = size(), { k } = view;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.fillStyle = colors.bg;
  ctx.fillRect(0, 0, w, h);
  ctx.setTransform(ratio * k, 0, 0, ratio * k, -view.x * k * ratio, -view.y * k * ratio);
  const area = [view.x, view.y, view.x + w / k, view.y + h / k];
  drawBands(scene, area, k);
  drawFrames(scene, area, k);
  if (k > .07) drawEdges(inView(scene, 'segments', ...area), scene.large, k);
  const boxes = inView(scene, 'boxes', ...area);
  if (k < .3) drawBlocks(boxes, k);
  drawSelectionEdges(k);
  if (k >= .3) boxes.forEach(box => drawBox(box, k));
  drawRings(k);
  drawBandLabels(scene, area, k);
  drawMini();
}
const outside = (thing, [x1, y1, x2, y2]) => thing.x > x2 || thing.y > y2 || thing.x + thing.w < x1 || thing.y + thing.h < y1;

function drawBands(scene, area) {
  ctx.fillStyle = colors.band;
  for (const band of scene.bands) if (band.parity % 2 === 0 && !outside(band, area)) ctx.fillRect(band.x, band.y, band.w, band.h);
}
/** Names of layers keep their size on the screen, so that the picture can be read from far. */
function drawBandLabels(scene, area, k) {
  const px = 11 / k;
  ctx.font = `600 ${px}px ${colors.sans}`;
  ctx.textBaseline = 'top';
  ctx.fillStyle = colors.text;
  ctx.strokeStyle = colors.bg; // a rim keeps the name readable over boxes
  ctx.lineWidth = 4 / k;
  ctx.lineJoin = 'round';
  for (const band of scene.bands) {
    if (outside(band, area) || band.h * k < 13) continue;
    const short = band.label.replace(/^.*[._](\D+[._]\d+)$/, '$1'), text = band.w * k < 170 ? short.replace(/^\D+/, '') : short;
    const x = band.x + 4 / k, y = Math.max(band.y + 3 / k, Math.min(area[1] + 6 / k, band.y + band.h - 16 / k));
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
  }
}
function drawFrames(scene, area, k) {
  ctx.lineWidth = Math.max(1.5, 1 / k);
  for (const frame of scene.frames) {
    if (outside(frame, area)) continue;
    ctx.beginPath();
    ctx.roundRect(frame.x, frame.y, frame.w, frame.h, 10);
    if (frame.depth) { ctx.fillStyle = colors.panel; ctx.globalAlpha = .75; ctx.fill(); ctx.globalAlpha = 1; }
    ctx.strokeStyle = frame.depth ? colors.frame : colors.line;
    ctx.stroke();
    if (frame.from) {
      ctx.beginPath();
      ctx.moveTo(frame.from.x, frame.from.y + frame.from.boxH);
      ctx.lineTo(clamp(frame.from.x, frame.x + 10, frame.x + frame.w - 10), frame.y);
      ctx.stroke();
    }
    if (frame.h * k < 24) continue;
    const px = Math.max(11, Math.min(11 / k, frame.depth ? 20 : Infinity));
    ctx.font = `600 ${px}px ${colors.sans}`;
    ctx.textBaseline = 'middle';
    ctx.fillStyle = frame.depth ? colors.frame : colors.muted;
    ctx.fillText(frame.label, frame.x + 12, frame.depth ? frame.y + 15 : frame.y - px, frame.depth ? frame.w - 20 : undefined);
  }
}
function trace(s, rough) {
  ctx.moveTo(s.x1, s.y0);
  if (s.jump) {
    const { low, x, high } = s.jump;
    ctx.arcTo(s.x1, low, x, low, 10); ctx.arcTo(x, low, x, high, 10); ctx.arcTo(x, high, s.x2, high, 10); ctx.arcTo(s.x2, high, s.x2, s.y2, 10);
    return ctx.lineTo(s.x2, s.y2);
  }
  ctx.lineTo(s.x1, s.y1);
  const mid = (s.y1 + s.y2) / 2;
  if (rough || Math.abs(s.x1 - s.x2) < 1) ctx.lineTo(s.x2, s.y2);
  else ctx.bezierCurveTo(s.x1, mid, s.x2, mid, s.x2, s.y2);
}
function strokeAll(segments, color, width, rough) {
  ctx.beginPath();
  for (const segment of segments) trace(segment, rough);
  ctx.strokeStyle = color;
  ctx.lineWidth = width;
  ctx.stroke();
}
function drawEdges(segments, large, k) {
  strokeAll(segments, colors.edge, Math.max(1.2, .7 / k), k < .3);
  strokeAll(large, colors.edge, Math.max(1.2, .7 / k), false);
}
/** The edges of the selected node in full, and dashed lines to the far ends that chips stand for. */
function drawSelectionEdges(k) {
  const box = ui.selected?.box, width = Math.max(2.2, 1.6 / k);
  if (!box) return;
  const into = new Set();
  for (let s of box.inSegments) for (; s; s = s.before) into.add(s);
  strokeAll(into, colors.in, width);
  strokeAll(box.outSegments, colors.out, width);
  ctx.setLineDash([6 / k, 5 / k]);
  const far = (a, b, color) => {
    ctx.beginPath();
    ctx.moveTo(a.x, a.y + a.boxH);
    const bow = Math.max(40, Math.abs(b.y - a.y) / 4);
    ctx.bezierCurveTo(a.x, a.y + a.boxH + bow, b.x, b.y - bow, b.x, b.y);
    ctx.strokeStyle = color; ctx.lineWidth = width * .7; ctx.stroke();
  };
  for (const s of into) if (s.from.kind === 'chip') far(s.from.from.box, s.from, colors.in);
  for (const chip of (ui.scene.chips.get(ui.selected) || []).slice(0, 300)) far(box, chip, colors.out);
  ctx.setLineDash([]);
}
const faded = box => ui.matches && !(box.node && ui.matches.set.has(box.node));

/** From far, a box is a block of colour; blocks of one colour in a row cost little. */
function drawBlocks(boxes, k) {
  const byColor = new Map();
  for (const box of boxes) {
    const color = box.node ? solid(box.node.cat) : box.kind === 'end' ? colors[endColor(box)] : colors.edge;
    const key = (faded(box) ? '0' : '1') + color;
    if (!byColor.has(key)) byColor.set(key, []);
    byColor.get(key).push(box);
  }
  const least = 1.6 / k;
  for (const [key, group] of [...byColor].sort()) {
    ctx.fillStyle = key.slice(1);
    ctx.globalAlpha = key[0] === '1' ? 1 : .22;
    for (const box of group) ctx.fillRect(box.x - box.boxW / 2, box.y, box.boxW, Math.max(least, box.boxH));
  }
  ctx.globalAlpha = 1;
}
const endColor = box => box.role === 'input' ? 'in' : box.role === 'output' ? 'accent' : 'out';
function drawBox(box, k) {
  const x = box.x - box.boxW / 2, { y, boxW: w, boxH: h } = box;
  ctx.globalAlpha = faded(box) ? .4 : 1;
  ctx.beginPath();
  ctx.lineWidth = 1;
  if (box.kind === 'node') drawNode(box, x, y, w, h, k);
  else {
    ctx.roundRect(x, y, w, h, box.kind === 'end' ? h / 2 : 4);
    ctx.fillStyle = colors.panel;
    ctx.fill();
    ctx.strokeStyle = box.kind === 'end' ? colors[endColor(box)] : colors.edge;
    ctx.stroke();
    if (k > .42) drawSmallText(box, y, h);
  }
  ctx.globalAlpha = 1;
}
function drawSmallText(box, y, h) {
  ctx.textBaseline = 'middle';
  ctx.textAlign = 'center';
  ctx.font = MONO_FONT;
  ctx.fillStyle = box.kind === 'end' ? colors.text : colors.muted;
  ctx.fillText(box.label, box.x, box.note ? y + 10.5 : y + h / 2 + .5);
  ctx.fillStyle = colors.muted;
  if (box.note) ctx.fillText(box.note, box.x, y + 21.5);
  ctx.textAlign = 'left';
}
function drawNode(box, x, y, w, h, k) {
  const { cat, op } = box.node;
  ctx.roundRect(x, y, w, h, 5);
  ctx.fillStyle = tint(cat);
  ctx.fill();
  ctx.strokeStyle = rim(cat);
  ctx.stroke();
  ctx.fillStyle = solid(cat);
  ctx.beginPath();
  ctx.roundRect(x, y, 4.5, h, [5, 0, 0, 5]);
  ctx.fill();
  ctx.textBaseline = 'middle';
  if (k > .34) {
    ctx.font = OP_FONT;
    ctx.fillStyle = colors.text;
    ctx.fillText(op, x + 12, y + 11.5);
  }
  if (k < .42) return;
  ctx.font = MONO_FONT;
  ctx.fillStyle = colors.muted;
  ctx.textAlign = 'right';
  ctx.fillText(box.out, x + w - 8, y + 12);
  ctx.textAlign = 'left';
  if (box.line) ctx.fillText(box.line, x + 12, y + 26);
  let top = y + (box.line ? 35 : 22);
  for (const line of box.badges) {
    ctx.fillStyle = colors.panel;
    ctx.fillRect(x + 9, top, w - 15, 13);
    ctx.fillStyle = colors.text;
    ctx.fillText(line, x + 13, top + 7);
    top += 15;
  }
}
function drawRings(k) {
  const ring = (box, color, width) => {
    ctx.strokeStyle = color;
    ctx.lineWidth = Math.max(width, width / k);
    const pad = ctx.lineWidth;
    ctx.strokeRect(box.x - box.boxW / 2 - pad, box.y - pad, box.boxW + 2 * pad, box.boxH + 2 * pad);
  };
  if (ui.matches && ui.matches.found.length <= 400 && view.k < 1.5) ui.matches.found.forEach(node => node.box && ring(node.box, colors.ring, 1));
  if (ui.hover) ring(ui.hover, colors.accent, 1);
  if (ui.selected?.box) ring(ui.selected.box, colors.accent, 2.2);
  if (ui.slot != null) ui.scene.boxes.forEach(box => box.kind === 'end' && box.slot === ui.slot && ring(box, colors.accent, 2.2));
}

// ---- The small map: drawn once per layout and look, then only its frame moves.

function paintMini() {
  const { scene } = ui, ratio = devicePixelRatio || 1;
  const scale = Math.min(216 / scene.w, 150 / scene.h), w = Math.max(30, scene.w * scale), h = Math.max(30, scene.h * scale);
  mini.width = w * ratio; mini.height = h * ratio;
  Object.assign(mini.style, { width: `${w}px`, height: `${h}px` });
  miniImage = Object.assign(document.createElement('canvas'), { width: mini.width, height: mini.height });
  miniImage.scale = scale;
  const c = miniImage.getContext('2d');
  c.setTransform(ratio * scale, 0, 0, ratio * scale, -scene.x * ratio * scale, 0);
  for (const box of scene.boxes) {
    if (!box.node) continue;
    c.fillStyle = solid(box.node.cat);
    c.fillRect(box.x - box.boxW / 2, box.y, box.boxW, Math.max(box.boxH, 1 / scale));
  }
}
function drawMini() {
  const c = mini.getContext('2d'), ratio = devicePixelRatio || 1, { w, h } = size(), { scene } = ui, { scale } = miniImage;
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.clearRect(0, 0, mini.width, mini.height);
  c.drawImage(miniImage, 0, 0);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.strokeStyle = colors.accent;
  c.lineWidth = 1.5;
  c.strokeRect((view.x - scene.x) * scale, view.y * scale, w / view.k * scale, h / view.k * scale);
  if (ui.selected?.box) { c.fillStyle = colors.ring; c.fillRect((ui.selected.box.x - scene.x) * scale - 2, ui.selected.box.y * scale - 2, 5, 5); }
}
