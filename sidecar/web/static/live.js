// Fetches the page again when the sidecar says that something moved, and changes what changed.
"use strict";
(() => {
  const stream = document.getElementById("stream");
  const every = 1000; // milliseconds, at least, between two fetches
  let last = 0;
  let waiting = null;
  let poll = null;

  const tell = (text) => { if (stream && stream.textContent !== text) stream.textContent = text; };

  const change = (fresh) => {
    for (const old of document.querySelectorAll("[data-live]")) {
      const now = fresh.getElementById(old.id);
      // What somebody is in the middle of is left as it is.
      const inside = old.contains(document.activeElement) && document.activeElement !== document.body;
      if (!now || inside || old.querySelector("details[open]") || old.isEqualNode(now)) continue;
      if (old.hasAttribute("aria-live")) {
        old.className = now.className;
        if (old.innerHTML !== now.innerHTML) old.replaceChildren(...now.childNodes);
      } else {
        const at = [...old.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
        old.replaceWith(now);
        now.querySelectorAll(".scroll").forEach((each, n) => { if (at[n]) [each.scrollLeft, each.scrollTop] = at[n]; });
      }
    }
  };

  const look = async () => {
    waiting = null;
    last = Date.now();
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { accept: "text/html" } });
      if (!answer.ok) { tell(`· not answered now (${answer.status})`); return; }
      change(new DOMParser().parseFromString(await answer.text(), "text/html"));
      tell(poll ? "· refreshed now and then" : "· live");
    } catch {
      tell("· the sidecar does not answer");
    }
  };

  const soon = () => {
    if (waiting === null && !document.hidden) waiting = setTimeout(look, Math.max(0, last + every - Date.now()));
  };

  const events = new EventSource("/api/v1/events");
  events.onopen = () => tell("· live");
  const of = document.getElementById("main").dataset.execution;
  for (const name of of ? ["finding", "verdict"] : ["status", "finding", "verdict"]) {
    events.addEventListener(name, (event) => {
      if (!of || JSON.parse(event.data).execution_id === of) soon();
    });
  }
  events.addEventListener("dropped", soon);
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED && poll === null) poll = setInterval(soon, of ? 30000 : 5000);
    tell(poll ? "· refreshed now and then" : "· the stream broke off, trying again");
  };
  document.addEventListener("visibilitychange", soon);
})();
