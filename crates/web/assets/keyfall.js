// The page works without this file. It adds the zone of the reader, keys, copying, and a line that
// says when the daemon is away.
"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);

  // The server writes times in this zone. A browser that keeps no cookies stays with UTC.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const wanted = `keyfall_zone=${encodeURIComponent(zone)}`;
  if (zone && !document.cookie.split("; ").includes(wanted)) {
    document.cookie = `${wanted}; SameSite=Strict; Max-Age=31536000`;
    const isKept = document.cookie.split("; ").includes(wanted);
    if (isKept && !$("form.login, #token, [role=alert]")) location.replace(location.href);
  }

  // Buttons that need a script.
  const enhance = (root) => {
    for (const button of root.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  };
  enhance(document);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent).then(() => {
      const text = button.textContent;
      button.textContent = "✔";
      setTimeout(() => { button.textContent = text; }, 1200);
    });
  });

  // `/` searches; j and k move through the rows, and Enter follows the link.
  const links = () => [...document.querySelectorAll(".rows tbody th a")];
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, textarea, select");
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      const find = $("#find");
      if (find) { find.focus(); find.select(); }
    } else if (event.key === "j" || event.key === "k") {
      const all = links();
      const at = all.indexOf(document.activeElement);
      const to = at < 0 ? 0 : at + (event.key === "j" ? 1 : -1);
      if (all[to]) { event.preventDefault(); all[to].focus(); }
    }
  });

  // A page that nobody looks at asks for nothing.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.requestConfig.verb === "get") event.preventDefault();
  });

  // A live page that nobody sees closes its stream; seen again, it asks for what it has missed.
  // The extension gets an object that behaves as one stream all the time.
  if (window.htmx) htmx.createEventSource = (url) => {
    const stream = new EventTarget();
    const names = new Set();
    let source = null, last = null, isOver = false;
    const forward = (event) => {
      last = event.lastEventId || last;
      stream.dispatchEvent(new MessageEvent(event.type, { data: event.data, lastEventId: event.lastEventId }));
    };
    const open = () => {
      const from = new URL(url, document.baseURI);
      if (last) from.searchParams.set("since", last);
      source = new EventSource(from);
      for (const name of names) source.addEventListener(name, forward);
      source.onopen = (event) => stream.onopen?.(event);
      source.onerror = (event) => {
        stream.readyState = source.readyState;
        if (source.readyState === EventSource.CLOSED) stream.close();
        stream.onerror?.(event);
      };
    };
    const look = () => {
      if (isOver) return;
      if (document.hidden) { source?.close(); source = null; }
      else if (!source) open();
    };
    stream.addEventListener = (name, heard) => {
      EventTarget.prototype.addEventListener.call(stream, name, heard);
      if (!names.has(name)) { names.add(name); source?.addEventListener(name, forward); }
    };
    stream.close = () => {
      isOver = true;
      source?.close();
      document.removeEventListener("visibilitychange", look);
    };
    document.addEventListener("visibilitychange", look);
    look();
    return stream;
  };

  // A row that came twice, after a new connection, and rows beyond what a person reads.
  document.addEventListener("htmx:sseMessage", () => {
    const rows = $("#rows");
    if (!rows) return;
    const seen = new Set();
    for (const row of [...rows.children]) {
      if (seen.has(row.id) || seen.size >= 500) row.remove();
      else seen.add(row.id);
    }
    if (rows.children.length) $("#nothing")?.remove();
    away(false);
  });
  document.addEventListener("htmx:sseError", () => away(true));
  document.addEventListener("htmx:sseOpen", () => away(false));

  // The daemon is away, and back.
  const away = (is) => { const line = $("#offline"); if (line) line.hidden = !is; };
  document.addEventListener("htmx:sendError", () => away(true));
  document.addEventListener("htmx:afterOnLoad", (event) => {
    away(false);
    if (event.detail.xhr.status < 400) $("#fault").textContent = "";
    enhance(document);
  });
})();
