// Shows the hover text of a chart at the pointer. The rest of the page works without this script.
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg");
  const box = plot.querySelector(".hover");
  const words = JSON.parse(svg.dataset.words);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", "0");
  cursor.setAttribute("y2", "100");
  const show = (event) => {
    const area = svg.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - area.left) / area.width, 0), 0.9999);
    const at = Math.floor(share * words.length);
    box.hidden = !words[at];
    if (box.hidden) { cursor.remove(); return; }
    box.textContent = words[at];
    const x = ((at + 0.5) / words.length) * 100;
    cursor.setAttribute("x1", String(x * 10));
    cursor.setAttribute("x2", String(x * 10));
    svg.append(cursor);
    box.style.left = x < 50 ? `calc(${x}% + 10px)` : "auto";
    box.style.right = x < 50 ? "auto" : `calc(${100 - x}% + 10px)`;
  };
  const hide = () => { box.hidden = true; cursor.remove(); };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}
