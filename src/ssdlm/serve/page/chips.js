// Words that must or must not appear, each a chip that a click removes.

export class Chips {
  constructor(element, changed) {
    this.list = element.querySelector("ul");
    this.input = element.querySelector("input");
    this.words = [];
    this.changed = changed;
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === ",") {
        event.preventDefault();
        this.add();
      } else if (event.key === "Backspace" && !this.input.value && this.words.length) {
        this.value = this.words.slice(0, -1);
        changed();
      }
    });
    this.input.addEventListener("blur", () => this.add());
  }

  add() {
    const word = this.input.value.trim();
    this.input.value = "";
    if (!word || this.words.includes(word)) return;
    this.value = [...this.words, word];
    this.changed();
  }

  get value() {
    return this.words;
  }

  set value(words) {
    this.words = words;
    this.list.replaceChildren(
      ...words.map((word) => {
        const [item, button] = [document.createElement("li"), document.createElement("button")];
        button.type = "button";
        button.textContent = word;
        button.setAttribute("aria-label", `remove ${word}`);
        button.addEventListener("click", () => {
          this.value = this.words.filter((other) => other !== word);
          this.changed();
          this.input.focus();
        });
        item.append(button);
        return item;
      }),
    );
  }
}
