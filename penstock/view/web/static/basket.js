// Samples to exclude, stored in this tab. One request publishes a version without them.
import { element } from "./element.js";

const NAME = "penstock-basket";
const up = document.body.dataset.up, csrf = document.querySelector("meta[name=csrf]")?.content;
let say = () => {};

const keyOf = (element) => decodeURIComponent(element.dataset.key);
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
  const label = document.querySelector("#basket");
  label.hidden = !samples.length;
  label.textContent = `${samples.length} in the basket`;
  const picked = new Set(samples.map((one) => `${one.version}\n${one.key}`));
  for (const card of document.querySelectorAll("[data-key]")) {
    card.classList.toggle("picked", picked.has(`${card.dataset.version}\n${keyOf(card)}`));
  }
}

function current() {
  const card = document.activeElement?.closest?.("[data-key]") ?? document.body;
  return card.dataset.key === undefined ? null : { version: card.dataset.version, key: keyOf(card) };
}

async function send(samples, reason, by) {
  const answer = await fetch(`${up}exclude`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF": csrf },
    body: JSON.stringify({ samples, reason, by, page: location.pathname }),
  });
  const text = await answer.text();
  if (!answer.ok) return say(`not excluded: ${text}`);
  keep([]);
  const { versions } = JSON.parse(text);
  say(`excluded; new: ${versions.join(", ")}`);
  const [dataset, n] = versions[0].split("@");
  location.assign(`${up}v/${encodeURIComponent(dataset)}/${n - 1}/diff/${n}`);
}

function ask(samples) {
  const asked = (label, name, value) => element("label", {}, label, element("input", { name, value, required: true }));
  const no = element("button", { formNoValidate: true, value: "cancel" }, "Cancel");
  const form = element(
    "form",
    { method: "dialog" },
    element("h2", {}, `Exclude ${samples.length} ${samples.length === 1 ? "sample" : "samples"}`),
    element("p", {}, samples.slice(0, 20).map((one) => escaped(one.key)).join(", ")),
    asked("Reason ", "reason", ""),
    asked("Your name ", "by", localStorage.getItem("penstock-by") ?? ""),
    element("button", {}, "Exclude"),
    " ",
    no,
  );
  const dialog = element("dialog", { id: "exclude" }, form);
  document.body.append(dialog);
  form.addEventListener("submit", (event) => {
    if (event.submitter === no) return;
    const given = new FormData(form);
    localStorage.setItem("penstock-by", given.get("by"));
    send(samples, given.get("reason"), given.get("by"));
  });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

export const basket = {
  begin(report) {
    say = report;
    show(read());
  },
  toggle() {
    const one = current();
    if (!one) return say("no sample is selected: use the arrows");
    const samples = read(), there = samples.findIndex((it) => it.version === one.version && it.key === one.key);
    if (there < 0) samples.push(one);
    else samples.splice(there, 1);
    keep(samples);
  },
  exclude() {
    const one = current();
    const samples = read().length ? read() : one ? [one] : [];
    if (!samples.length) return say("the basket is empty: press b to add the selected sample");
    if (!csrf) {
      const command = `penstock exclude --reason R --by WHO -- ${samples[0].version.split("@")[0]} ${samples.map((it) => word(it.key)).join(" ")}`;
      return say(`this server only reads (--allow-writes); run instead: ${command}`);
    }
    ask(samples);
  },
};
