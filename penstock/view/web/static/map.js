// The map of a version: a pointer or the keyboard draws a lasso, which becomes a part of the address.
const SVG = "http://www.w3.org/2000/svg", MOST = 64, UNITS = 65535, STEP = 2048;
const whole = (value) => Math.max(0, Math.min(UNITS, Math.round(value)));

// The pointer's place in map units: the drawing shows a part of the map.
function place(plane, event) {
  const shown = plane.querySelector("svg").viewBox.baseVal, box = plane.getBoundingClientRect();
  const x = shown.x + (event.clientX - box.left) / box.width * shown.width;
  const y = shown.y + (event.clientY - box.top) / box.height * shown.height;
  return [whole(x), whole(y)];
}

const draw = (plane, corners) => plane.querySelector(".lasso").setAttribute("points", corners.map((corner) => corner.join(",")).join(" "));

// Every n-th corner: an address has at most 64.
function thinned(corners) {
  const every = Math.ceil(corners.length / MOST);
  return corners.filter((_, position) => position % every === 0);
}

// Opens the page with the lasso in its filter: the list of samples beside the map, or the map by itself.
function keep(plane, corners) {
  const map = plane.closest(".map"), rest = map.dataset.filter;
  const link = document.createElement("a");
  link.href = `${rest}${rest.length > 1 ? "&" : ""}lasso=${thinned(corners).map((corner) => corner.join(",")).join(";")}`;
  map.append(link);
  globalThis.htmx?.process(link);
  link.click();
  link.remove();
}

let drag = null, asked = 0;
addEventListener("pointerdown", (event) => {
  const plane = event.target.closest?.(".plane");
  if (!plane || event.button) return;
  drag = { plane, corners: [place(plane, event)] };
  plane.setPointerCapture(event.pointerId);
});
addEventListener("pointermove", (event) => {
  if (drag) {
    drag.corners.push(place(drag.plane, event));
    draw(drag.plane, drag.corners);
    return;
  }
  const plane = event.target.closest?.(".plane");
  if (!plane) return;
  clearTimeout(asked);
  const [x, y] = place(plane, event);
  asked = setTimeout(() => name(plane, x, y), 120);
});
addEventListener("pointerup", () => {
  if (!drag) return;
  const { plane, corners } = drag;
  drag = null;
  const xs = corners.map(([x]) => x), ys = corners.map(([, y]) => y);
  const isClick = Math.max(...xs) - Math.min(...xs) + Math.max(...ys) - Math.min(...ys) < 400;
  if (!isClick && corners.length > 2) return keep(plane, corners);
  plane.closest(".map").querySelector(".near a")?.click();
});

// Names the sample at the pointer.
async function name(plane, x, y) {
  const map = plane.closest(".map"), near = map.querySelector(".near"), rest = map.dataset.filter;
  const answer = await fetch(`${map.dataset.near}${rest}${rest.length > 1 ? "&" : ""}x=${x}&y=${y}`);
  if (!answer.ok) return;
  const sample = await answer.json();
  near.replaceChildren();
  if (sample.ordinal === null) return;
  const link = document.createElement("a");
  link.href = map.dataset.sample + sample.ordinal;
  link.textContent = sample.key;
  near.append(link, sample.label && ` ${sample.label}`);
}

// With the keyboard: l begins a box, arrows move it, Shift and arrows size it, Enter keeps what is inside.
let box = null;
const cornersOf = ([x0, y0, x1, y1]) => [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
addEventListener("keydown", (event) => {
  const plane = document.querySelector(".plane");
  if (!plane || event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey) return;
  if (event.key === "l") {
    plane.focus();
    box = [24576, 24576, 40960, 40960];
  } else if (!box || document.activeElement !== plane) return;
  else if (event.key === "Escape") box = null;
  else if (event.key === "Enter") {
    const corners = cornersOf(box);
    box = null;
    event.preventDefault();
    event.stopImmediatePropagation();
    return keep(plane, corners);
  } else if (event.key in ARROWS) {
    const [right, down] = ARROWS[event.key].map((by) => by * STEP);
    const moved = event.shiftKey ? [0, 0, right, down] : [right, down, right, down];
    box = box.map((value, position) => whole(value + moved[position]));
  } else return;
  event.preventDefault();
  event.stopImmediatePropagation();
  draw(plane, box ? cornersOf(box) : []);
}, true);
