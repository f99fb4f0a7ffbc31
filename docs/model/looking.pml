/* Adoption where a key and its ledger are on two nodes, as on a cluster: those who look at the key
 * take a number from the ledger, read, and write. README.md says what is modelled.
 *
 * One script is one atomic step. What is asked is whether the ledger has what the key has when
 * nobody has anything left to do, whoever died on the way. */

#ifndef CHANGES
#define CHANGES 2        /* how often somebody sets or deletes the key */
#endif
#ifndef LOOKERS
#define LOOKERS 2        /* all hear of each change; all but the first may die between any two steps */
#endif
#ifndef LEDGER_FAILS
#define LEDGER_FAILS 0   /* how often another node takes over the ledger, as it was some time ago */
#endif
#ifndef KEY_FAILS
#define KEY_FAILS 0      /* the same of the key, once at the most; the node of before answers on */
#endif

/* What breaks a step on purpose; see the file `checks`. */
#ifndef UNNUMBERED
#define UNNUMBERED false     /* the last to write is right */
#endif
#ifndef READS_AGAIN
#define READS_AGAIN false    /* who has written reads again, until it is the same */
#endif
#ifndef READS_FIRST
#define READS_FIRST false    /* the number is taken when the key has been read */
#endif
#ifndef ANY_REIGN
#define ANY_REIGN false      /* numbers do not say how often the ledger was taken over before */
#endif
#ifndef SEARCHES
#define SEARCHES true        /* what a take-over forgot is looked for */
#endif
#ifndef READS_THERE
#define READS_THERE true     /* a key is read on the node that announced its change */
#endif
#ifndef ANY_NODE
#define ANY_NODE false       /* what was read on a node of before counts as well */
#endif

/* What must not be; false for ever, and there for its name in what Spin reports. */
#ifndef ledger_differs
bit ledger_differs;      /* nobody will look any more, and the ledger has something else than the key */
#endif

/* What is asked for with SHOW. */
#define nothing 0
#define is_refused 1     /* a write comes behind a later one */
#define comes_late 2     /* a write of before a take-over comes after it */
#ifndef SHOW
#define SHOW nothing
#endif
#define shown(what) assert(SHOW != what)

#define NONE 0
#define REIGN 32         /* more numbers than are taken */
typedef Ledger {
	byte has;            /* which value of the key, or NONE */
	byte taken;          /* the last number that was handed out */
	byte last;           /* the highest with which something was written */
	byte node;           /* the latest node on which that had been read */
};
Ledger ledger;
byte reign;              /* how often another node took over */

byte key[2];             /* which value each of its nodes has, or NONE */
byte owner;              /* the one that takes writes */
byte newest;             /* values are numbered */

byte heard[LOOKERS];     /* something was done to the key: on which node, and one more; or NONE */

/* All hear that something may have been done to the key. */
inline announce() {
	byte each;
	for (each : 0 .. LOOKERS - 1) { heard[each] = owner + 1 }
	each = 0
}

inline take_number() {
	atomic {
		ledger.taken++;
		number = ledger.taken + (ANY_REIGN -> 0 : reign * REIGN);
		since = reign
	}
}

inline read() {
	atomic {
		value = key[at];
		printf("looker %d: reads %d on node %d, by number %d\n", me, value, at, number)
	}
}

/* All but the first may be gone from here on. */
inline survive() {
	if
	:: me > 0 -> goto gone
	:: true
	fi
}

proctype Looker(byte me) {
	byte number;
	byte since;
	byte value;
	byte at;
	bool again;
end_idle:
	do
	:: atomic {
			heard[me] != NONE ->
			if
			:: at = heard[me] - 1
			/* Which node serves the key is known late. */
			:: !READS_THERE -> at = 0
			fi;
			heard[me] = NONE
		};
		do
		:: survive();
			if
			:: READS_FIRST -> read(); survive(); take_number()
			:: else -> take_number(); survive(); read()
			fi;
			survive();
			atomic {
				if
				:: UNNUMBERED || !ANY_NODE && at > ledger.node ||
				   (ANY_NODE || at == ledger.node) && number > ledger.last ->
					if
					:: since != reign -> shown(comes_late)
					:: else
					fi;
					again = READS_AGAIN && ledger.has != value;
					ledger.has = value;
					ledger.last = number;
					ledger.node = at;
					printf("looker %d: writes %d, by number %d\n", me, value, number)
				/* Whoever was later has seen as much, or will hear of the rest, as all do. */
				:: else -> again = false; shown(is_refused)
				fi;
				number = 0; value = 0; since = 0;
				if
				:: again -> again = false
				:: else -> break
				fi
			}
		od
	od;
gone:	skip
}

/* Somebody who knows nothing of Keyfall. */
proctype User() {
	byte changes;
	do
	:: changes == CHANGES -> break
	:: atomic {
			changes < CHANGES -> changes++;
			if
			:: newest++; key[owner] = newest
			:: key[owner] = NONE
			fi;
			printf("user: the key has %d on node %d\n", key[owner], owner);
			announce()
		}
	od
}

/* A replica of the ledger has what was there at some time, and takes over at a later one. Whoever
 * looks learns of it later still. */
proctype LedgerFails() {
	byte times;
	Ledger copy;
	do
	:: times == LEDGER_FAILS -> break
	:: atomic {
			times < LEDGER_FAILS -> times++;
			copy.has = ledger.has;
			copy.taken = ledger.taken;
			copy.last = ledger.last;
			copy.node = ledger.node
		};
		atomic {
			printf("ledger: goes back to %d, by number %d\n", copy.has, copy.last);
			ledger.has = copy.has;
			ledger.taken = copy.taken;
			ledger.last = copy.last;
			ledger.node = copy.node;
			copy.has = 0; copy.taken = 0; copy.last = 0; copy.node = 0;
			reign++
		};
		atomic {
			if
			:: SEARCHES -> announce()
			:: else
			fi
		}
	od
}

/* The same of the key. The node of before does not know yet, and answers with what it had. */
proctype KeyFails() {
	byte copy;
	if
	:: KEY_FAILS == 0
	:: KEY_FAILS > 0 ->
		atomic { copy = key[0] };
		atomic {
			printf("key: goes back to %d, on node 1\n", copy);
			key[1] = copy;
			owner = 1
		};
		atomic {
			if
			:: SEARCHES -> announce()
			:: else
			fi
		}
	fi
}

/* When nobody has anything left to do. */
active proctype Watch() {
	timeout -> assert(ledger.has == key[owner] || ledger_differs)
}

init {
	atomic {
		byte i;
		for (i : 0 .. LOOKERS - 1) { run Looker(i) }
		run User();
		run LedgerFails();
		run KeyFails()
	}
}
