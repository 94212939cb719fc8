// The script of the console. Pages work without it, except for copy buttons and live updates.
"use strict";

(() => {
  // Copy buttons: <button data-copy="#id">Copy</button> copies the text of an element.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // Parts that refresh themselves: <section id="x" data-refresh="5"> loads this page again and
  // replaces the section by the one with the same id, until it has no data-refresh any more.
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const seconds = Number(part.dataset.refresh);
    const refresh = async () => {
      // Hidden pages cause no load, and a part in which the visitor is typing is not replaced.
      const current = document.getElementById(part.id);
      if (!document.hidden && current && !current.contains(document.activeElement)) {
        try {
          const response = await fetch(location.href, { headers: { accept: "text/html" } });
          const text = await response.text();
          const loaded = new DOMParser().parseFromString(text, "text/html").getElementById(part.id);
          if (response.ok && loaded) {
            current.replaceWith(loaded);
            if (!loaded.dataset.refresh) return;
          }
        } catch {
          // The service is restarting: try again at the next interval.
        }
      }
      setTimeout(refresh, seconds * 1000);
    };
    setTimeout(refresh, seconds * 1000);
  }

  // A live tail: <div data-live="address" data-after="7" data-rows="#id"> adds a row for each new
  // event to the top of a table. Events arrive in the order of the log and are added once: rows up
  // to the newest displayed position are skipped. A new connection continues after the last
  // position that was received, so no event is lost.
  for (const live of document.querySelectorAll("[data-live]")) followEvents(live);

  function followEvents(live) {
    const state = live.querySelector("[role=status]");
    const button = live.querySelector("[data-live-button]");
    const rows = document.querySelector(`${live.dataset.rows} tbody`);
    const maxRows = Number(live.dataset.max);
    let newest = BigInt(live.dataset.newest); // numbers are exact only up to 2 ** 53
    let last = live.dataset.after;
    let source = null;
    let timer = 0;

    const report = (text, on) => {
      state.textContent = text;
      live.dataset.state = on ? "on" : "off";
    };
    const disconnect = () => {
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    };
    const reconnect = (text) => {
      disconnect();
      report(text, false);
      timer = setTimeout(connect, 2000);
    };
    const connect = () => {
      disconnect();
      const address = new URL(live.dataset.live, location.href);
      address.searchParams.set("after", last);
      source = new EventSource(address);
      source.onopen = () => report("following", true);
      // An EventSource reconnects by itself, but not after an error response, such as 429.
      source.onerror = () => reconnect("connection lost, trying again");
      source.addEventListener("problem", (event) => {
        const problem = JSON.parse(event.data);
        reconnect(`${problem.title}, trying again`);
      });
      source.addEventListener("position", (event) => { last = event.lastEventId; });
      source.addEventListener("rows", (event) => {
        last = event.lastEventId;
        for (const row of JSON.parse(event.data)) {
          const position = BigInt(row.key);
          if (position <= newest) continue;
          newest = position;
          rows.querySelector("td[colspan]")?.parentElement.remove();
          rows.prepend(makeRow(row));
        }
        while (rows.childElementCount > maxRows) rows.lastElementChild.remove();
      });
    };
    button.addEventListener("click", () => {
      if (button.textContent === "Pause") {
        disconnect();
        report("paused", false);
        button.textContent = "Resume";
      } else {
        button.textContent = "Pause";
        connect();
      }
    });
    connect();
  }

  function makeRow(row) {
    const line = document.createElement("tr");
    line.className = "new";
    // Texts are set as textContent, never as markup: they come from the contents of events.
    const addCell = (kind, text, address) => {
      const cell = line.insertCell();
      if (kind) cell.className = kind;
      const inner = address ? cell.appendChild(document.createElement("a")) : cell;
      if (address) inner.href = address;
      inner.textContent = text;
      return cell;
    };
    addCell("number", row.position, row.address);
    const moment = document.createElement("time");
    moment.dateTime = row.recorded_at;
    moment.textContent = row.time;
    addCell("time", "").append(moment);
    addCell("", row.type);
    addCell("id", row.stream, row.stream_address);
    addCell("number", row.seq);
    addCell("", row.actor);
    addCell("payload", row.payload);
    return line;
  }
})();
