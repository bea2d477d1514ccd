// An episode on one axis: cameras, lanes, language and trained windows follow one cursor. Every value beside the cursor
// comes from the server, which picks it as the loader does; the browser only plays videos between two such moments.
import { Axis, Plot, columns, extent, number } from "./lines.js";
import { KEYS, answer, go, say } from "./view.js";

const at = document.body.dataset, here = at.episode;
const one = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
let isTroubled = false;
const record = await answer(at.record).then((response) => response.json()).catch((error) => {
  trouble(`The episode did not load: ${error.message}`);
  throw error;
});
const isTime = record.unit === "s", second = isTime ? 1e9 : 10;
const axis = new Axis(0, record.length_ns);
let playing = false;
const named = (value) => decodeURIComponent(value);

// Seconds after the axis's start, exact to the nanosecond up to 11 days; a step in an episode without a clock.
const seconds = (ns) => String(isTime ? ns / 1e9 : ns);

function shown(ns, digits = 4) {
  return isTime ? `${(ns / 1e9).toFixed(digits)} s` : `step ${ns}`;
}

function address(page, values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));
  return `${here}/${page}?${query}`;
}

// A new element with these properties and children.
function element(tag, properties, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

// The latest request of one kind: the next is sent when an answer is here, and those between are dropped.
class Latest {
  constructor(act) { this.act = act; }

  ask(value) {
    this.next = { value };
    this.busy ??= this.work();
    return this.busy;
  }

  async work() {
    await null; // `ask` sets `busy` first
    while (this.next) {
      const { value } = this.next;
      this.next = null;
      try { await this.act(value); } catch (error) { trouble(String(error.message ?? error)); }
    }
    this.busy = null;
  }
}

function trouble(text) {
  say(text, true);
  isTroubled = true;
}

// A camera: the stored video where the browser plays it, else the server's frames.
class Camera {
  constructor(figure) {
    this.figure = figure;
    this.field = named(figure.dataset.field);
    this.caption = figure.querySelector("[data-frame]");
    this.video = figure.querySelector("video");
    this.img = figure.querySelector("img");
    this.frames = new Latest((frame) => this.load(frame));
    if (!this.video) return;
    this.video.controls = false;
    this.video.addEventListener("error", () => this.fall());
    this.video.addEventListener("loadeddata", () => this.show());
    if (this.video.error || this.video.networkState === HTMLMediaElement.NETWORK_NO_SOURCE) this.fall();
  }

  get plays() { return Boolean(this.video && isTime); }

  // The browser does not play this video: show the frames that the server decodes.
  fall() {
    if (!this.video) return;
    this.img = element("img", { alt: this.field });
    this.video.replaceWith(this.img);
    this.video = null;
    this.figure.dataset.frames = "server";
    this.show();
  }

  take(track) {
    this.track = track;
    this.caption.textContent = track.error || track.text;
    this.show();
  }

  show() {
    const { track } = this;
    if (!track || track.error || playing) return this.img && track && !track.error ? this.frames.ask(track.number) : undefined;
    if (this.img) return this.frames.ask(track.number);
    if (!this.video || !track.shown_s) return undefined;
    // A video that stops paints a frame of its own choice: place it even where its time is right.
    if (this.placed !== track.number) this.video.currentTime = (track.shown_s[0] + track.shown_s[1]) / 2;
    this.placed = track.number;
    return undefined;
  }

  async load(frame) {
    if (!this.img || this.number === frame) return;
    const src = `${here}/frame/${encodeURIComponent(this.field)}/${frame}`;
    await new Promise((done) => {
      this.img.onload = this.img.onerror = done;
      this.img.src = src;
    });
    this.number = this.img.naturalWidth ? frame : undefined; // a frame that failed is asked for again
    if (this.img.naturalWidth) this.report("");
    else await answer(src).catch((error) => this.report(error.message));
  }

  report(text) {
    let note = this.figure.querySelector(".trouble");
    this.img.hidden = Boolean(text);
    if (!text) return note?.remove();
    if (!note) {
      note = element("p", { className: "trouble", role: "alert" });
      this.figure.prepend(note);
    }
    note.textContent = text;
  }

  // Where the axis is when the video is at its present time.
  get now() {
    return this.track.first_ns + (this.video.currentTime - this.track.shown_s[0]) * 1e9;
  }

  // Set right, while playing, a video that is more than half a frame off.
  follow(ns) {
    if (!this.video || !this.track?.shown_s || this.video.seeking) return;
    const [from, to] = this.track.shown_s, want = from + (ns - this.track.first_ns) / 1e9;
    if (Math.abs(this.video.currentTime - want) > Math.max(0.5 * (to - from), 0.005) && performance.now() > (this.patience ?? 0)) {
      this.video.currentTime = want;
      this.patience = performance.now() + 500;
    }
  }
}

// A lane: some dimensions of one stream, with those of another dashed.
class Lane {
  constructor(canvas) {
    this.number = Number(canvas.dataset.lane);
    this.lane = record.lanes[this.number];
    this.note = canvas.parentElement.querySelector(".lane-note");
    this.rows = [...one(`[data-values="${this.number}"]`).children];
    const dims = this.lane.labels.map((_, dim) => dim);
    this.solid = dims.map((dim) => ({ colour: dim, x: null }));
    this.dashed = this.lane.dashed ? dims.map((dim) => ({ colour: dim, alpha: 0.75, width: 1, dashed: true, x: null })) : [];
    this.plot = new Plot(canvas, axis, { series: [...this.solid, ...this.dashed], unit: this.lane.unit, whole: !isTime });
    this.latest = new Latest(() => this.load());
    this.rows.forEach((row, dim) => row.querySelector("button").addEventListener("click", () => this.alone(dim)));
    new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting;
      if (this.seen && this.stale !== false) this.latest.ask();
    }, { rootMargin: "200px" }).observe(canvas);
    axis.ranged.push(() => {
      this.stale = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => { if (this.seen) this.latest.ask(); }, 120);
    });
  }

  async load() {
    this.stale = false;
    const { first, labels } = this.lane, room = (axis.to - axis.from) * 0.25;
    const range = { from: Math.floor(Math.max(0, axis.from - room)), to: Math.ceil(Math.min(axis.last, axis.to + room)) };
    const width = Math.ceil(this.plot.canvas.getBoundingClientRect().width) || 600;
    const wide = Math.max(1, Math.min(4096, Math.round((width * (range.to - range.from)) / (axis.to - axis.from))));
    if (!this.solid[0].x) this.say("reading …");
    let least = 100;
    try {
      for (const [field, series] of [[this.lane.field, this.solid], [this.lane.dashed, this.dashed]]) {
        if (!field) continue;
        const query = { first, stop: first + labels.length, ...range, columns: wide };
        const { read, percent } = columns(await (await answer(address(`lane/${encodeURIComponent(field)}`, query))).arrayBuffer());
        least = Math.min(least, percent);
        series.forEach((line, dim) => Object.assign(line, read[dim]));
      }
      this.measure(least < 100);
      this.say(least < 100 ? `${least} % read …` : "");
      if (!this.rows[0]?.querySelector(".v").textContent) latest.ask(axis.at); // the stream was too large before
    } catch (error) {
      this.say(String(error.message));
    }
    axis.draw(true);
    this.stale ||= least < 100; // the server reads on with each request
    if (least < 100 && this.seen) this.latest.ask();
  }

  // The range of each dimension over what was read first, which is the whole episode, once the server has read it.
  measure(isPart) {
    this.solid.forEach((line, dim) => {
      const own = extent(line), other = this.dashed[dim] ? extent(this.dashed[dim]) : own;
      if (isPart || this.wasPart) line.range = null;
      line.range ??= [Math.min(own[0], other[0]), Math.max(own[1], other[1])];
      if (this.dashed[dim]) this.dashed[dim].range = line.range;
    });
    this.wasPart = isPart;
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  alone(dim) {
    const back = this.only === dim;
    this.only = back ? undefined : dim;
    for (const lines of [this.solid, this.dashed]) lines.forEach((line, i) => { line.hidden = !back && i !== dim; });
    this.rows.forEach((row, i) => {
      row.classList.toggle("faint", !back && i !== dim);
      row.querySelector("button").setAttribute("aria-pressed", String(!back && i === dim));
    });
    axis.draw(true);
  }

  take(tracks) {
    const track = tracks.get(this.lane.field);
    if (!track) return;
    this.rows.forEach((row, dim) => {
      const value = track.values[this.lane.first + dim];
      row.querySelector(".v").textContent = value === undefined ? "" : number(value);
    });
  }
}

const cameras = all(".cam").map((figure) => new Camera(figure));
const lanes = all("[data-lane]").map((canvas) => new Lane(canvas));

// A lane of spans, and the text of those at the cursor.
function band(canvas, spans, cell, colourOf) {
  if (!canvas) return;
  const drawn = spans.map((span, i) => ({ from: span.first_ns, to: span.last_ns, text: span.text, colour: colourOf(span, i) }));
  new Plot(canvas, axis, { spans: drawn, whole: !isTime });
  if (!cell) return;
  axis.moved.push((now) => {
    const held = spans.filter((span) => span.first_ns <= now && now < Math.max(span.last_ns, span.first_ns + 1));
    const text = held.map((span) => [span.text, span.detail].filter(Boolean).join(" · ")).join("; ");
    if (cell.textContent !== text) cell.textContent = text;
  });
}

for (const canvas of all("[data-language]")) {
  const kind = named(canvas.dataset.language);
  band(canvas, record.language.filter((span) => span.kind === kind), all("[data-said]").find((cell) => named(cell.dataset.said) === kind), (_, i) => i);
}
band(one("#keep"), record.keep.map((span) => ({ ...span, text: "" })), null, () => 2);
band(one("#faults"), record.faults, one("#fault-here"), (span) => (span.kind === "gap" ? 4 : 1));
new Plot(one("#ruler"), axis, { ruler: (x) => (isTime ? `${Number((x / 1e9).toPrecision(6))} s` : String(Math.round(x))), whole: !isTime });

function take(next) {
  if (isTroubled) one("#status").hidden = true; // an answer to another request, sent before, says nothing of now
  isTroubled = false;
  const tracks = new Map(next.tracks.map((track) => [track.field, track]));
  for (const camera of cameras) if (tracks.has(camera.field)) camera.take(tracks.get(camera.field));
  for (const lane of lanes) lane.take(tracks);
  one("#row").textContent = next.row < 0 ? "–" : next.row;
  const cells = ([name, text]) => [element("th", {}, name), element("td", {}, text)];
  one("#cursor").replaceChildren(...next.facts.map((fact) => element("tr", {}, ...cells(fact))));
  at.moment = String(next.at_ns);
}

const anchor = new URLSearchParams(location.search).get("anchor") ?? "";
const latest = new Latest(async (now) => take(await (await answer(address("moment", { at: now, anchor }))).json()));
let steps = Promise.resolve();

// Go to the next row or frame of a field, or the one before; presses are carried out in order.
function step(by, field) {
  if (playing) play();
  if (!field) return;
  steps = steps.then(async () => {
    const next = await (await answer(address("moment", { at: axis.at, by, of: field, anchor }))).json();
    take(next);
    axis.seek(next.at_ns, "step");
  }).catch((error) => trouble(error.message));
}

const walked = () => cameras.find((camera) => camera.track && !camera.track.error)?.field ?? record.anchor;

let saved;
axis.moved.push((now, why) => {
  one("#time").textContent = shown(now);
  const ruler = one("#ruler");
  ruler.setAttribute("aria-valuenow", String(now));
  ruler.setAttribute("aria-valuetext", shown(now));
  if (now < axis.from || now > axis.to) axis.range(now - (axis.to - axis.from) / 2, now + (axis.to - axis.from) / 2);
  if (why !== "step") latest.ask(now);
  clearTimeout(saved);
  saved = setTimeout(() => {
    const url = new URL(location.href);
    url.searchParams.delete("row");
    url.searchParams.set("t", seconds(now));
    history.replaceState(null, "", url);
  }, 400);
});

let leader = null, clock = 0;
function play() {
  playing = !playing;
  one("#play").firstChild.textContent = playing ? "❚❚ " : "▶ ";
  one("#play").setAttribute("aria-label", playing ? "space: pause" : "space: play");
  const moving = cameras.filter((camera) => camera.plays && camera.track?.shown_s);
  if (!playing) {
    for (const camera of moving) camera.video.pause();
    axis.seek(axis.at);
    return;
  }
  if (axis.at >= axis.last) axis.seek(0);
  leader = moving[0] ?? null;
  for (const camera of moving) {
    camera.video.playbackRate = Number(one("#speed").value);
    camera.placed = null;
    camera.video.play().catch((error) => { if (error.name === "NotSupportedError") camera.fall(); });
  }
  clock = performance.now();
  requestAnimationFrame(tick);
}

// The first camera that plays leads; without one the clock of the browser does.
function tick(time) {
  if (!playing) return;
  if (leader && (!leader.video || leader.video.ended)) leader = null;
  const rate = Number(one("#speed").value), before = axis.at;
  const now = leader ? Math.max(0, leader.now) : before + ((time - clock) / 1000) * second * rate;
  clock = time;
  for (const camera of cameras) if (camera !== leader) camera.follow(now);
  axis.seek(now);
  if (now >= axis.last) play();
  else requestAnimationFrame(tick);
}

one("#speed").addEventListener("change", () => {
  for (const camera of cameras) if (camera.video) camera.video.playbackRate = Number(one("#speed").value);
});

function normalise() {
  const button = one("#normalised"), on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  for (const lane of lanes) lane.plot.normalised = on;
  axis.draw(true);
}

function fold(n) {
  const button = one(`[data-fold="${n}"]`);
  if (!button) return;
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  lanes[n].plot.canvas.parentElement.classList.toggle("folded", open);
}

// Some keys of every page have another meaning here.
Object.assign(KEYS, {
  " ": play,
  ",": () => step(-1, walked()),
  ".": () => step(1, walked()),
  "<": () => step(-1, record.anchor),
  ">": () => step(1, record.anchor),
  ArrowLeft: () => axis.seek(axis.at - second),
  ArrowRight: () => axis.seek(axis.at + second),
  Home: () => axis.seek(0),
  End: () => axis.seek(axis.last),
  "+": () => axis.zoom(0.5),
  "-": () => axis.zoom(2),
  0: () => axis.whole(),
  n: normalise,
});
for (let n = 1; n <= 9; n++) KEYS[n] = () => fold(n - 1);
addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-seek]");
  if (button) axis.seek(Number(button.dataset.seek));
});

// The windows that trainings took of this episode: the server lists them, and a lane shows those of the first run.
const slot = (run, window) => `${at.up}r/${encodeURIComponent(run)}/${window.step}/${window.slot}`;
const loss = (value) => (value === null ? "" : `: loss ${number(value)}`);

function draw(run) {
  const levels = 1 + Math.max(...run.windows.map((window) => window.level)), losses = run.windows.map((window) => window.loss).filter(Number.isFinite);
  const least = Math.min(...losses), most = Math.max(...losses);
  const ticks = run.windows.map((window) => ({
    from: window.first_ns, to: window.last_ns, top: (window.level + 0.02) / levels, tall: 0.8 / levels, tone: window.is_far ? "bad" : "",
    alpha: Number.isFinite(window.loss) && most > least ? 0.35 + 0.65 * ((window.loss - least) / (most - least)) : 0.7,
  }));
  for (const cell of all(".trained-name, .trained-lane, .trained-key")) cell.hidden = false;
  one(".trained-lane").classList.toggle("tall", levels > 12);
  one("#trained-of").textContent = `${run.training}, ${run.windows.length} windows`;
  const held = (now) => run.windows.filter((window) => window.first_ns <= now && now <= window.last_ns);
  new Plot(one("#windows"), axis, {
    ticks,
    whole: !isTime,
    pick: (now, share) => {
      const window = held(now).find((window_) => window_.level === Math.floor(share * levels));
      if (window) go(slot(run.training, window));
    },
  });
  axis.moved.push((now) => {
    const there = held(now), worst = there.toSorted((a, b) => (b.loss ?? -1) - (a.loss ?? -1))[0];
    one("#trained-here").textContent = worst ? `${there.length} here; step ${worst.step}${loss(worst.loss)}` : "none here";
  });
  axis.seek(axis.at, "step");
}

async function trained(more) {
  const box = one("#runs"), headers = { "HX-Request": "true" };
  box.textContent = "searching …";
  try {
    box.innerHTML = await (await answer(address("trained", { run: named(at.run), more }), { headers })).text();
  } catch (error) {
    box.textContent = String(error.message);
  }
  const drawn = box.querySelector("[data-drawn]");
  if (drawn && one(".trained-lane").hidden) draw(JSON.parse(named(drawn.dataset.drawn)));
}
KEYS.more = () => trained("1");

axis.seek(Number(at.at));
axis.draw(true);
trained("");
await latest.busy;
at.episodeReady = "yes";
