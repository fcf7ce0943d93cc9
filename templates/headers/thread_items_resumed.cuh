//@ Items
struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
    ThreadState start[kRunItems];  // what items that begin a segment continue from
};
