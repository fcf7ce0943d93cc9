//@ ItemContext
struct ItemContext {         // where consecutive items lie in their line
    Position rest = 0;       // items from the first of them to the line's end
    int index = 0;           // of the first of them
    Begins starts = 0;       // a bit for each that begins a segment
    Begins next_starts = 0;  // the same of the items after them
};
