// The map of a version: a pointer or the keyboard draws a lasso, the wheel a part; both become parts of the address.
const UNITS = 65535, MOST = 64, LEAST_SIDE = 512;
const whole = (value) => Math.max(0, Math.min(UNITS, Math.round(value)));
const shown = (plane) => plane.querySelector("svg").viewBox.baseVal;

// The pointer's place in map units: the drawing shows a part of the map.
function place(plane, event) {
  const part = shown(plane), box = plane.getBoundingClientRect();
  const x = part.x + (event.clientX - box.left) / box.width * part.width;
  const y = part.y + (event.clientY - box.top) / box.height * part.height;
  return [whole(x), whole(y)];
}

// Without corners: the lasso of the page's filter.
function draw(plane, corners) {
  const lasso = plane.querySelector(".lasso");
  lasso.setAttribute("points", corners?.map((corner) => corner.join(",")).join(" ") ?? lasso.dataset.kept);
}

// Every n-th corner: an address has at most 64.
function thinned(corners) {
  const every = Math.ceil(corners.length / MOST);
  return corners.filter((_, position) => position % every === 0);
}

// The query of a page that was requested and is not shown yet: a lasso must not lose the facet that was clicked before it.
let coming = "";
document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => {
  if (ctx.target?.id === "found") coming = `?${ctx.request.action.split("?")[1] ?? ""}`;
});
for (const end of ["htmx:after:swap", "htmx:error"]) document.addEventListener(end, () => { coming = ""; });

// Opens the page with another lasso or part: the list of samples beside the map, or the map by itself.
function open(plane, name, value) {
  const map = plane.closest(".map"), query = new URLSearchParams(coming || map.dataset[name === "box" ? "unzoomed" : "unlassoed"]);
  for (const other of ["from", "counted", name]) query.delete(other);
  if (value) query.set(name, value);
  const link = document.createElement("a");
  link.href = `?${query}`;
  map.append(link);
  globalThis.htmx?.process(link);
  link.click();
  link.remove();
}
const keep = (plane, corners) => open(plane, "lasso", thinned(corners).map((corner) => corner.join(",")).join(";"));

let drag = null, asked = 0;
addEventListener("pointerdown", (event) => {
  const plane = event.target.closest?.(".plane");
  if (!plane || event.button) return;
  drag = { corners: [place(plane, event)] };
  plane.setPointerCapture(event.pointerId);
});
addEventListener("pointermove", (event) => {
  // An answer that comes during a drag may have replaced the map.
  const plane = drag ? document.querySelector(".plane") : event.target.closest?.(".plane");
  if (!plane) return;
  if (drag) {
    drag.corners.push(place(plane, event));
    return draw(plane, drag.corners);
  }
  clearTimeout(asked);
  const [x, y] = place(plane, event);
  asked = setTimeout(() => name(plane, x, y), 120);
});
addEventListener("pointercancel", () => {
  if (drag) draw(document.querySelector(".plane"));
  drag = null;
});
addEventListener("pointerup", () => {
  const plane = document.querySelector(".plane"), corners = drag?.corners;
  drag = null;
  if (!corners || !plane) return;
  const xs = corners.map(([x]) => x), ys = corners.map(([, y]) => y);
  const way = Math.max(...xs) - Math.min(...xs) + Math.max(...ys) - Math.min(...ys);
  if (way > shown(plane).width / 160 && corners.length > 2) return keep(plane, corners);
  draw(plane);
  plane.closest(".map").querySelector(".near a")?.click();
});

// The wheel zooms around the pointer: one page for all its turns of a tenth of a second.
let factor = 1, turning = 0;
addEventListener("wheel", (event) => {
  const plane = event.target.closest?.(".plane");
  if (!plane || event.ctrlKey) return;
  const part = shown(plane), [x, y] = place(plane, event);
  // Over the whole map the wheel scrolls the page on.
  if (event.deltaY > 0 && part.width > UNITS && factor >= 1) return;
  event.preventDefault();
  factor *= event.deltaY > 0 ? 1.25 : 0.8;
  clearTimeout(turning);
  turning = setTimeout(() => {
    const side = Math.max(LEAST_SIDE, Math.min(UNITS + 1, Math.round(part.width * factor)));
    const first = (point, low, length) => Math.max(0, Math.min(UNITS + 1 - side, Math.round(point - (point - low) / length * side)));
    const x0 = first(x, part.x, part.width), y0 = first(y, part.y, part.height);
    factor = 1;
    open(plane, "box", side > UNITS ? "" : [x0, y0, x0 + side, y0 + side].join(","));
  }, 100);
}, { passive: false });

// Names the sample at the pointer.
async function name(plane, x, y) {
  const map = plane.closest(".map"), near = map.querySelector(".near"), address = map.dataset.near;
  const answer = await fetch(`${address}${address.endsWith("?") ? "" : "&"}x=${x}&y=${y}`);
  if (!answer.ok) return;
  const sample = await answer.json();
  near.replaceChildren();
  if (sample.ordinal === null) return;
  const link = document.createElement("a");
  link.href = map.dataset.sample + sample.ordinal;
  link.textContent = sample.key;
  near.append(link, sample.label && ` ${sample.label}`);
}

// With the keyboard: l begins a box, arrows move it, Shift and arrows size it, Enter keeps what is inside. Without a box
// arrows move the part that is drawn.
let box = null;
const cornersOf = ([x0, y0, x1, y1]) => [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
addEventListener("keydown", (event) => {
  const plane = document.querySelector(".plane");
  if (!plane || event.target.matches?.("input:not(.choice), select, textarea") || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const part = shown(plane);
  if (event.key === "l") {
    plane.focus();
    const at = (low, length, share) => whole(low + length * share);
    box = [at(part.x, part.width, 3 / 8), at(part.y, part.height, 3 / 8), at(part.x, part.width, 5 / 8), at(part.y, part.height, 5 / 8)];
  } else if (document.activeElement !== plane) return;
  else if (event.key === "Escape") {
    if (!box) press(plane, "[data-clear]");
    box = null;
  } else if (box && event.key === "Enter") {
    const corners = cornersOf(box);
    box = null;
    event.preventDefault();
    event.stopImmediatePropagation();
    return keep(plane, corners);
  } else if (box && event.key in ARROWS) {
    const [right, down] = ARROWS[event.key].map((by) => by * part.width / 32);
    const moved = event.shiftKey ? [0, 0, right, down] : [right, down, right, down];
    box = box.map((value, position) => whole(value + moved[position]));
  } else if (event.key in ARROWS) press(plane, `[data-zoom=${event.key.slice(5).toLowerCase()}]`);
  else return;
  event.preventDefault();
  event.stopImmediatePropagation();
  draw(plane, box && cornersOf(box));
}, true);
function press(plane, link) {
  plane.closest(".map").querySelector(link)?.click();
}
