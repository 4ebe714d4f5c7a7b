// Enhances pages. Every page works without it.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Show times in the time zone of the organization, else of the reader, in the reader's language, except where UTC is
// required; the title stays exact. Distances stay in the page's language.
const zone = document.documentElement.dataset.zone;
const formatOf = (style) => {
  try {
    return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", ...style, timeZone: zone });
  } catch {
    return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", ...style }); // a zone that the browser does not know
  }
};
const moment = formatOf({ timeStyle: "short" });
const second = formatOf({ timeStyle: "medium" });
const day = formatOf({});
const zoned = formatOf({ timeStyle: "long" });
const SPANS = [[86400, "day"], [3600, "hour"], [60, "minute"]];
const distance = (seconds) => {
  const length = Math.abs(seconds);
  const [size, unit] = SPANS.find(([size]) => length >= size) ?? [0];
  if (!size) return seconds > 0 ? "in less than a minute" : "just now";
  const count = Math.floor(length / size);
  const words = `${count} ${unit}${count === 1 ? "" : "s"}`;
  return seconds > 0 ? `in ${words}` : `${words} ago`;
};
// Amounts as the reader's languages (those of Accept-Language) write them, with all digits that the server gave.
const money = ({ value, dataset }) => {
  const digits = (value.split(".")[1] ?? "").replace(/0+$/, "").length;
  const style = { style: "currency", currency: dataset.currency };
  const { maximumFractionDigits } = new Intl.NumberFormat(navigator.languages, style).resolvedOptions();
  return new Intl.NumberFormat(navigator.languages, { ...style, maximumFractionDigits: Math.max(digits, maximumFractionDigits) }).format(value);
};
export const localize = (within) => {
  for (const amount of all("data[data-currency]", within)) {
    const text = money(amount);
    if (amount.textContent !== text) amount.textContent = text;
  }
  for (const time of all("time[datetime]", within)) {
    if (time.closest("[data-utc]")) continue;
    const at = new Date(time.dateTime);
    const isDistance = "distance" in time.dataset;
    const format = "day" in time.dataset ? day : "seconds" in time.dataset ? second : moment;
    const text = isDistance ? distance((at - Date.now()) / 1000) : format.format(at);
    if (time.textContent !== text) time.textContent = text; // a selection in it survives
    if (isDistance) time.title = zoned.format(at);
  }
};
setInterval(() => localize(document), 60000);
localize(document);

// A field for a time zone offers those that the browser knows.
for (const field of all("[data-zones]")) {
  for (const name of Intl.supportedValuesOf?.("timeZone") ?? []) field.list.append(new Option(name, name));
}

// A secret is shown once: ask before the user leaves the page, until it is copied or the box is checked. "Back" may show
// a page from the browser's memory, so the secret is removed from it.
const guarded = document.querySelector("[data-guard]");
const saved = guarded && document.getElementById(guarded.dataset.guard);
if (guarded) {
  addEventListener("beforeunload", (event) => {
    if (guarded.isConnected && !saved.checked) event.preventDefault();
  });
  addEventListener("pagehide", () => all("[data-guard], [data-secret]").forEach((part) => part.remove()));
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

// Samples in several languages become tabs; without the script, all of them are shown.
for (const [number, group] of all("[data-tabs]").entries()) {
  const panels = [...group.children];
  const list = Object.assign(document.createElement("div"), { className: "tablist" });
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", group.dataset.tabs);
  const select = (chosen) => tabs.forEach((tab, at) => {
    tab.setAttribute("aria-selected", at === chosen);
    tab.tabIndex = at === chosen ? 0 : -1;
    panels[at].hidden = at !== chosen;
  });
  const tabs = panels.map((panel, at) => {
    const caption = panel.querySelector("figcaption");
    const tab = Object.assign(document.createElement("button"), { type: "button", textContent: caption.textContent });
    caption.hidden = true;
    tab.id = `tab-${number}-${at}`;
    panel.id = `panel-${number}-${at}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => select(at));
    return tab;
  });
  list.addEventListener("keydown", ({ key }) => {
    const at = tabs.indexOf(document.activeElement);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[key];
    if (next === undefined) return;
    const tab = tabs.at(next % tabs.length);
    tab.focus();
    tab.click();
  });
  list.append(...tabs);
  group.prepend(list);
  select(0);
}

// Copy buttons, if the browser allows copying.
if (navigator.clipboard) {
  for (const button of all("[data-copy]")) {
    button.hidden = false;
    if (guarded?.contains(button)) button.focus();
    const word = button.firstChild; // the hidden label follows it
    const label = word.data;
    button.addEventListener("click", async () => {
      const source = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        getSelection().selectAllChildren(source);
        word.data = "Selected, not copied";
        return announce("Copying failed. The text is selected: copy it with the keyboard.");
      }
      if (guarded?.contains(button)) saved.checked = true;
      word.data = "Copied";
      announce("Copied");
      setTimeout(() => { word.data = label; }, 2000);
    });
  }
}

// The slider over a chart shows the numbers of one bar: below the pointer, or by the arrow keys.
for (const slider of all(".chart input[type=range]")) {
  const chart = slider.closest(".chart");
  const readout = chart.querySelector(".readout");
  const bars = all("g", chart);
  const hint = readout.textContent;
  const names = all("thead th:not(:first-child)", chart).map((cell) => cell.textContent);
  const rows = all("tbody tr", chart).reverse();
  const partsOf = (index) => all("td", rows[index]).flatMap(({ textContent }, place) => (textContent === "0" ? [] : [` · ${names[place]} ${textContent}`]));
  const textOf = (index) => bars[index] && bars[index].querySelector("title").textContent + (names.length > 1 ? partsOf(index).join("") : "");
  const show = (index) => {
    bars.forEach((bar, place) => bar.classList.toggle("chosen", place === index));
    readout.textContent = textOf(index) ?? hint;
    slider.setAttribute("aria-valuetext", textOf(slider.value));
  };
  const point = (event) => {
    const box = slider.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
    slider.value = index;
    show(Number(slider.value));
  };
  slider.hidden = readout.hidden = false;
  show(-1);
  slider.addEventListener("pointermove", point);
  slider.addEventListener("click", point);
  slider.addEventListener("pointerleave", () => slider.matches(":focus-visible") || show(-1));
  for (const kind of ["focus", "input"]) slider.addEventListener(kind, () => show(Number(slider.value)));
  slider.addEventListener("blur", () => show(-1));
}

// Request without a user's action. The header tells the server so, because some browsers do not.
const ask = (address, method = "GET", signal = undefined) =>
  fetch(address, { method, signal, headers: { Accept: "text/html", "X-Requested-With": "fetch" } }).catch(() => null);

const load = async (address, signal) => {
  const answer = await ask(address, "GET", signal);
  const text = answer?.ok && (await answer.text().catch(() => ""));
  return [text && new DOMParser().parseFromString(text, "text/html"), answer];
};

function announce(text) {
  let region = document.getElementById("announcer");
  if (!region) {
    region = Object.assign(document.createElement("p"), { id: "announcer", className: "unseen" });
    region.setAttribute("role", "status");
    document.body.append(region);
  }
  region.textContent = text;
}

// Replace a part of the page by that of a newer page, and keep the focus.
const renew = (part, newer) => {
  const is = (one) => one.getAttribute("href") ?? one.textContent;
  const focused = part.contains(document.activeElement) && is(document.activeElement);
  localize(newer);
  part.replaceChildren(...newer.childNodes);
  if (focused === false) return;
  const same = all("a, button", part).find((one) => is(one) === focused);
  (same ?? Object.assign(part, { tabIndex: -1 })).focus({ preventScroll: true });
};

// A link with data-dialog opens the dialog of that id instead of the linked page. The focus is on the choice that
// changes nothing.
for (const link of all("a[data-dialog]")) {
  const dialog = document.getElementById(link.dataset.dialog);
  if (!dialog) continue;
  link.setAttribute("aria-haspopup", "dialog");
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    dialog.showModal();
    dialog.querySelector("[data-close]").focus({ preventScroll: true });
  });
}
for (const button of all("[data-close]")) {
  button.hidden = false;
  button.addEventListener("click", () => button.closest("dialog").close());
}

// Arrow keys, Home and End move the focus among the entries of a menu, and Arrow down opens it.
const moveFocus = (event, entries) => {
  const now = entries.indexOf(document.activeElement);
  const next = { ArrowDown: (now + 1) % entries.length, ArrowUp: (Math.max(now, 0) || entries.length) - 1, Home: 0, End: entries.length - 1 }[event.key];
  if (next === undefined || !entries.length) return;
  event.preventDefault();
  entries[next].focus();
};
for (const menu of all("details.menu")) {
  menu.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input");
    if (isTyping && event.key !== "ArrowDown") return;
    if (event.key === "ArrowDown") menu.open = true;
    if (menu.open) moveFocus(event, all("ul a, ul button", menu).filter((entry) => entry.checkVisibility()));
  });
}

// Close menus on Escape, on clicks outside and when the focus leaves.
for (const menu of all("details.menu")) {
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("focusout", (event) => {
    // no target: in browsers where a click focuses no link, the click must still reach the link in the menu
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });
}

// A field that narrows the entries of its list.
for (const field of all("[data-narrows]")) {
  field.hidden = false;
  const entries = all("li:not(:has([data-narrows]))", field.closest("ul"));
  field.addEventListener("input", () => {
    const text = field.value.trim().toLowerCase();
    for (const entry of entries) entry.hidden = !entry.textContent.toLowerCase().includes(text);
  });
}

// A list filters as soon as the user makes a choice with a pointer; arrow keys pass over choices on the way.
for (const choice of all("form.filter-bar select")) {
  let byKey = false;
  choice.addEventListener("keydown", () => { byKey = true; });
  choice.addEventListener("pointerdown", () => { byKey = false; });
  choice.addEventListener("change", () => byKey || choice.form.requestSubmit());
}

// Reload a part of the page at the time from which it is outdated.
for (const part of all("[data-until]")) {
  const check = async () => {
    const [page] = await load(location.href);
    const newer = page && page.getElementById(part.id);
    if (newer && !newer.dataset.until) renew(part, newer);
    else setTimeout(check, 60000);
  };
  setTimeout(check, new Date(part.dataset.until) - Date.now() + 1000);
}

// The awaited change has happened: remove it from the address, so that a reload does not wait again.
const stopAwaiting = (part) => part.dataset.then && history.replaceState(null, "", part.dataset.then);
all("[data-then]").forEach(stopAwaiting);

// Poll for an expected change while the page is visible.
const waiting = document.querySelector("[data-poll]:not([data-done])");
if (waiting) {
  const hint = waiting.querySelector("[data-hint]");
  const before = hint.dataset.hint;
  hint.textContent = before;
  const [FIRST, LONGEST_WAIT] = [2000, 20 * 60000];
  let [since, pause, timer] = [Date.now(), FIRST, 0];
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(poll, pause);
    pause *= 1.05;
  };
  const poll = async () => {
    if (document.hidden) return;
    const [page, answer] = await load(waiting.dataset.poll);
    const part = page && page.getElementById(waiting.id);
    if ("done" in waiting.dataset) return;
    for (const one of all("[data-seen]", part || waiting)) waiting.querySelector("[data-seen]").replaceWith(one);
    if (part && "done" in part.dataset) {
      waiting.dataset.done = "";
      renew(waiting, part);
      stopAwaiting(part);
      for (const one of all("[data-with-it]")) renew(one, page.getElementById(one.id));
    } else if (answer?.status === 401 || Date.now() - since > LONGEST_WAIT) hint.textContent = "No longer checking.";
    else later();
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden || "done" in waiting.dataset) return;
    [since, pause] = [Date.now(), FIRST];
    hint.textContent = before;
    poll();
  });
  later();
}

// Submit a form once, even on a double click: the answer to the second would replace that to the first. Its button says
// what is in progress; "Back" may show the page from the browser's memory.
const release = (form) => {
  delete form.dataset.sent;
  for (const button of all("[aria-disabled][data-busy]", form)) {
    button.removeAttribute("aria-disabled");
    button.textContent = button.dataset.text;
  }
};
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if ("sent" in form.dataset) return event.preventDefault();
  form.dataset.sent = "";
  const button = event.submitter;
  if (button?.dataset.busy) {
    button.dataset.text = button.textContent;
    button.textContent = `${button.dataset.busy}…`;
    button.setAttribute("aria-disabled", "true");
  }
  setTimeout(release, 5000, form);
});
addEventListener("pageshow", (event) => event.persisted && all("form[data-sent]").forEach(release));

// A form that waits for the database: submit it once the service is ready again, but only while its user is likely
// to be there still.
for (const form of all("form[data-retry]")) {
  const until = Date.now() + 2 * 60000;
  const isLate = () => Date.now() > until;
  const hint = form.querySelector("[data-retrying]");
  hint.hidden = false;
  const retry = async () => {
    const answer = document.hidden || isLate() ? null : await ask(form.dataset.retry);
    if (isLate()) hint.hidden = true;
    else if (answer?.ok) form.requestSubmit();
    else setTimeout(retry, 3000);
  };
  setTimeout(retry, 3000);
}

// A form whose session has ended: when the same person has signed in in another tab, give it the token of the new session.
// Another person's click leads to a question, as every click without the script.
const personOf = (page) => page && page.querySelector("[data-person]");
if (personOf(document)) sessionStorage.person = personOf(document).dataset.person;
for (const form of all("form[data-signs-in]")) {
  const back = form.querySelector("[data-back]");
  const look = async () => {
    const [page] = await load(form.dataset.signsIn);
    const person = personOf(page)?.dataset?.person;
    if (!person || person !== sessionStorage.person) return;
    form.elements.form_token.value = page.querySelector("[name=form_token]").value;
    back.hidden = false;
  };
  addEventListener("focus", look);
}

// While the page is visible, reload its part when the event stream reports new events.
const ledger = document.querySelector("[data-live]");
if (ledger) {
  const state = document.querySelector("[data-live-state]");
  const REFUSED = [401, 403, 404];
  const [FIRST, LONGEST, TO_RENEW] = [1000, 300000, 30000];
  let source = null;
  let again = 0;
  let pause = FIRST;
  let heard = 0;
  let silenceLimit = 45000;
  let asking = Promise.resolve();
  const say = (text, kind) => {
    Object.assign(state, { textContent: text, className: `tag ${kind}`, hidden: false });
    document.querySelector("[data-reload]").hidden = kind === "green";
  };
  const address = () => `${ledger.dataset.live}?after=${ledger.dataset.after}`;
  const stop = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const stopped = () => {
    stop();
    say("Live updates stopped", "amber");
  };
  // Back off, with jitter: after a restart, all pages reconnect.
  const later = () => {
    again = setTimeout(retry, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST);
  };
  const lost = () => {
    stop();
    say("Reconnecting", "amber");
    later();
  };
  const retry = async () => {
    const answer = await ask(address(), "HEAD");
    if (document.hidden || source) return;
    if (REFUSED.includes(answer?.status)) stopped();
    else if (answer?.ok) start();
    else lost();
  };
  const announcedText = (part) => all("[data-announced]", part).map((one) => one.textContent).join();
  const refresh = async () => {
    const [page] = await load(ledger.dataset.from);
    const part = page && page.getElementById(ledger.id);
    if (!part) return lost();
    const known = new Set(all("[data-event]", ledger).map((entry) => entry.dataset.event));
    const fresh = all("[data-event]", part).filter((entry) => !known.has(entry.dataset.event));
    for (const entry of fresh) entry.classList.add("fresh");
    ledger.dataset.after = part.dataset.after;
    document.getElementById("notices").replaceChildren(...page.getElementById("notices").childNodes);
    const height = ledger.offsetHeight;
    localize(part);
    const said = (!waiting || "done" in waiting.dataset) && announcedText(ledger) !== announcedText(part) && part.dataset.news;
    renew(ledger, part);
    if (said) announce(said);
    if (scrollY > ledger.offsetTop) scrollBy({ top: ledger.offsetHeight - height, behavior: "instant" });
    if (fresh.length) announce(fresh.length > 1 ? `${fresh.length} new entries` : `New: ${fresh[0].querySelector("a").textContent}`);
  };
  const start = () => {
    stop();
    heard = Date.now();
    source = new EventSource(address());
    source.onerror = lost;
    source.addEventListener("live", (event) => {
      heard = Date.now();
      silenceLimit = 3000 * event.data;
      pause = FIRST;
      say("Live", "green");
    });
    source.addEventListener("new-events", () => {
      heard = Date.now();
      asking = asking.then(refresh);
    });
    source.addEventListener("bye", (event) => {
      stopped();
      if (event.data !== "renew") return;
      pause = Math.max(pause, TO_RENEW); // the user must open a page first, in this tab or another one
      later();
    });
  };
  const wake = () => document.hidden || start();
  // Browsers allow few connections to one host: a hidden page closes its stream.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && wake());
  addEventListener("online", wake);
  // After a sleep or a broken connection, the browser reports no error: reconnect if nothing arrives.
  setInterval(() => source && Date.now() - heard > silenceLimit && start(), 5000);
  wake();
}

// Ctrl-K or Cmd-K goes to the search box; on small screens, it opens the menu that has it.
const box = document.querySelector("[data-search]");
if (box) {
  const shortcut = /Mac|iPhone|iPad/.test(navigator.platform) ? "\u2318K" : "Ctrl K";
  box.placeholder += ` (${shortcut})`;
  box.setAttribute("aria-keyshortcuts", "Control+K Meta+K");
  addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || event.ctrlKey === event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (!box.checkVisibility()) box.closest("[popover]").showPopover();
    box.focus();
    box.select();
  });

  // Search while the user types in a field. No secret of a key is sent: it is longer, and nobody types it. One search is
  // in progress at a time.
  const [SHORTEST, LONGEST, PAUSE] = [2, 20, 200];
  const searchWhileTyping = (field, atOnce, show) => {
    let timer = 0;
    let isPasted = false;
    let search = new AbortController();
    field.addEventListener("input", ({ inputType = "" }) => {
      clearTimeout(timer);
      search.abort();
      isPasted = field.value !== "" && (isPasted || inputType.startsWith("insertFrom")); // a part of it may be a secret too
      const text = field.value.trim();
      atOnce(text);
      if (isPasted || text.length < SHORTEST || text.length > LONGEST) return;
      timer = setTimeout(async () => {
        search = new AbortController();
        const [page] = await load(`${box.form.action}?q=${encodeURIComponent(text)}`, search.signal);
        if (page && field.value.trim() === text) show(foundIn(page));
      }, PAUSE);
    });
  };
  const foundIn = (page) => all("main section", page).flatMap((section) =>
    all("li > p:first-child > a", section).map((link) => ({
      text: link.textContent.trim(),
      href: link.getAttribute("href"),
      kind: section.querySelector("h2").textContent,
      section: section.getAttribute("aria-labelledby"),
    })));

  // A filter offers the names that the search finds.
  for (const field of all("[data-finds]")) {
    const sections = field.dataset.finds.split(" ");
    searchWhileTyping(field, () => {}, (entries) => {
      const names = entries.filter(({ section }) => sections.includes(section)).map(({ text }) => text);
      field.list.replaceChildren(...[...new Set(names)].map((name) => new Option("", name)));
    });
  }

  // The search box suggests commands, pages and what the search finds.
  const list = document.querySelector("[data-suggestions]");
  const commands = JSON.parse(box.form.dataset.commands).map(([text, href]) => ({ text, href, kind: "Command" }));
  const pages = all(".rail .pages a[href^='/']").map((link) => ({ text: link.textContent.trim(), href: link.getAttribute("href"), kind: "Page" }));
  const show = (entries) => {
    list.replaceChildren(...entries.map(({ text, href, kind }) => {
      const link = Object.assign(document.createElement("a"), { href, textContent: text, dir: "auto" });
      link.append(Object.assign(document.createElement("small"), { textContent: kind }));
      const entry = document.createElement("li");
      entry.append(link);
      return entry;
    }));
    list.hidden = !entries.length;
  };
  const placesOf = (text) => (text ? [...commands, ...pages].filter((place) => place.text.toLowerCase().includes(text.toLowerCase())) : []);
  searchWhileTyping(box, (text) => show(placesOf(text)), (found) => {
    if (!box.form.contains(document.activeElement)) return;
    const entries = [...placesOf(box.value.trim()), ...found];
    if (document.activeElement === box) show(entries);
    announce(`${entries.length} suggestion${entries.length === 1 ? "" : "s"}`);
  });
  box.form.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "Escape") {
      event.preventDefault();
      box.focus();
      show([]);
    } else if (event.target !== box || event.key.startsWith("Arrow")) moveFocus(event, [box, ...all("a", list)]);
  });
  box.form.addEventListener("focusout", (event) => event.relatedTarget && !box.form.contains(event.relatedTarget) && show([]));
}
