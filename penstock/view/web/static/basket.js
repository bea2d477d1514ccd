// Samples to exclude, stored in this tab. One request publishes a version without them.
const NAME = "penstock-basket";
const up = document.body.dataset.up, csrf = document.querySelector("meta[name=csrf]")?.content;
let say = () => {};

// A page's samples of one version: the version stands on what holds them all.
const versionOf = (element) => element.dataset.version ?? element.closest("[data-version]")?.dataset.version;
// A card whose key shows as it is has it in its text only.
const keyOf = (element) => decodeURIComponent(element.dataset.key) || element.querySelector("code").textContent;
// Escapes unprintable characters, such as direction marks, for a shell and a person.
const escaped = (text) => text.replace(/\p{C}/gu, (one) => {
  const n = one.codePointAt(0);
  return n < 0x10000 ? `\\u${n.toString(16).padStart(4, "0")}` : `\\U${n.toString(16).padStart(8, "0")}`;
});
const word = (text) => (/\p{C}/u.test(text) ? `$'${escaped(text.replace(/[\\']/g, "\\$&"))}'` : `'${text.replaceAll("'", "'\\''")}'`);

const read = () => JSON.parse(sessionStorage.getItem(NAME) ?? "[]");

function keep(samples) {
  sessionStorage.setItem(NAME, JSON.stringify(samples));
  show(samples);
}

function show(samples) {
  document.querySelector("#tray").hidden = !samples.length;
  document.querySelector("#basket").textContent = `${samples.length} in the basket`;
  const picked = new Set(samples.map((one) => `${one.version}\n${one.key}`));
  for (const card of document.querySelectorAll("[data-key]")) {
    const isPicked = picked.has(`${versionOf(card)}\n${keyOf(card)}`), box = card.previousElementSibling;
    card.classList.toggle("picked", isPicked);
    if (box?.matches(".choice")) box.checked = isPicked;
  }
}

// The link that has the focus, or whose box has it.
export function focused() {
  const place = document.activeElement;
  return place.matches(".choice") ? place.nextElementSibling : place;
}

function current(card = focused().closest("[data-key]") ?? document.body) {
  return card.dataset.key === undefined ? null : { version: versionOf(card), key: keyOf(card) };
}

async function post(path, body, failure) {
  const headers = { "Content-Type": "application/json", "X-CSRF": csrf };
  const answer = await fetch(`${up}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  return say(`${failure}: ${text}`);
}

// Excludes samples or a slice, and shows what changed; or removes a slice.
async function change(path, body) {
  const done = await post(path, { ...body, page: location.pathname }, path === "slice/remove" ? "not removed" : "not excluded");
  if (!done) return;
  if (path === "exclude") keep([]);
  const [dataset, n] = (done.versions?.[0] ?? "").split("@");
  location.assign(n ? `${up}v/${encodeURIComponent(dataset)}/${n - 1}/diff/${n}` : `${up}slices`);
}

async function saveSlice(body, name, why, by) {
  const saved = await post("slice", { ...body, name, why, by, page: location.pathname + location.search }, "not saved");
  if (!saved) return;
  keep([]);
  say(`saved: slice ${saved.dataset}/${saved.name}, number ${saved.n}, of ${many(saved.n_samples)}; exclude it on its page, or train on it`);
}

// Asks in a dialog of the page; `done` gets the values of its fields.
function ask(name, title, text, done) {
  const dialog = document.querySelector(name), form = dialog.querySelector("form");
  form.reset();
  form.elements.by.value = localStorage.getItem("penstock-by") ?? "";
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = text;
  form.onsubmit = (event) => {
    if (event.submitter.value === "cancel") return;
    const values = Object.fromEntries(new FormData(form));
    localStorage.setItem("penstock-by", values.by);
    done(values);
  };
  dialog.showModal();
}

const many = (n) => `${n} ${Number(n) === 1 ? "sample" : "samples"}`;

// Marks the cards of the basket, after others have taken their place.
export const pickedAgain = () => show(read());

export const basket = {
  begin(report) {
    say = report;
    show(read());
  },
  toggle(card) {
    const one = current(card);
    if (!one) return say("no sample is selected: use the arrows");
    const samples = read(), there = samples.findIndex((it) => it.version === one.version && it.key === one.key);
    if (there < 0) samples.push(one);
    else samples.splice(there, 1);
    keep(samples);
  },
  // Opens the page whose first samples are most similar to the selected one; a version's page keeps its filter.
  more() {
    const one = current(), isVersion = document.querySelector("#found");
    if (!one) return say("no sample is selected: use the arrows");
    const [dataset, n] = one.version.split("@"), query = new URLSearchParams(isVersion ? location.search : "");
    for (const name of ["sort", "from"]) query.delete(name);
    query.set("like", one.key);
    location.assign(`${isVersion ? "" : `${up}v/${encodeURIComponent(dataset)}/${n}`}?${query}`);
  },
  exclude() {
    const one = current();
    const samples = read().length ? read() : one ? [one] : [];
    if (!samples.length) return say("the basket is empty: press b to add the selected sample");
    if (!csrf) {
      const command = `penstock exclude --reason R --by WHO -- ${samples[0].version.split("@")[0]} ${samples.map((it) => word(it.key)).join(" ")}`;
      return say(`this server only reads (--allow-writes); run instead: ${command}`);
    }
    const names = samples.slice(0, 20).map((it) => escaped(it.key)).join(", ");
    ask("#exclude", `Exclude ${many(samples.length)}`, names, (words) => change("exclude", { samples, ...words }));
  },
  // The basket as a list; without one, the page's filter: SQL as a rule that grows with versions, all else as a list.
  save() {
    const samples = read(), page = document.querySelector("#found")?.dataset ?? {}, sql = decodeURIComponent(page.sql ?? "");
    const versions = [...new Set(samples.map((it) => it.version))];
    if (versions.length > 1) return say(`a slice has samples of one version; the basket has ${versions.join(", ")}`);
    if (!samples.length && !sql && !page.found) return say("choose samples with b, or filter a version, and press s");
    const version = versions[0] ?? page.version, isRanked = !samples.length && page.like;
    const [body, text] = samples.length
      ? [{ keys: samples.map((it) => it.key) }, `${many(samples.length)} of ${version}`]
      : page.found
        ? [{ filter: page.filter }, `a list: the ${isRanked ? `samples of ${version} most similar to ${decodeURIComponent(page.like)}` : `${many(page.found)} of ${version} that this page finds`}`]
        : [{ where: sql }, `${version} where ${sql}: later samples that pass it belong to it, too`];
    if (!csrf) {
      const command = samples.length ? `penstock slice save ${version} NAME --from KEYS.txt --by WHO --why W` : decodeURIComponent(page.save);
      return say(`this server only reads (--allow-writes); run instead: ${command}`);
    }
    const box = document.querySelector("#save [name=k]");
    box.disabled = box.parentElement.hidden = !isRanked;
    ask("#save", "Save as a slice", text, ({ name, why, by, k }) => saveSlice({ version, ...body, ...(k ? { k: Number(k) } : {}) }, name, why, by));
  },
  // A button of a slice: what it does stands in `data-press`, as the path of the request.
  slice({ innerText: verb, dataset: { press, version, name, text } }) {
    ask("#change", verb, text, (words) => change(press, { version, name, ...words }));
  },
  empty: () => keep([]),
};
