/* The protocol of Keyfall for one job key: a ledger, producers, two workers, a network that
 * loses, repeats and delays, and whatever else can go wrong. README.md says what is modelled,
 * what is left out, and how to check it.
 *
 * One script is one atomic step, here as there; everything between two scripts can happen in
 * any order. Time passes in ticks. What a switch turns on stands in bounds.pml. */

#include "bounds.pml"
#include "ledger.pml"
#include "promises.pml"
#include "table.pml"
#include "hints.pml"
#include "scripts.pml"
#include "network.pml"
#include "producer.pml"
#include "worker.pml"
#include "faults.pml"

init {
	atomic {
		byte i;
		c_code { atexit(say_met); };
		forget_call(draft);
		for (i : 0 .. LANES - 1) {
			redis.reply[i] = none;
			forget_call(lane[i].straggler);
			hang_up(i);
			run Wire(i)
		}
		for (i : 0 .. PRODUCERS - 1) {
			run Producer(i)
		}
		for (i : 0 .. WORKERS - 1) {
			is_alive[i] = true;
			run Worker(i)
		}
#ifdef FIRST_IS_DOWN
		is_alive[0] = false;
#endif
		run Clock();
		run End();
#ifdef HINTS
		run Luck();
#ifndef NO_PACER
		for (i : 0 .. PACERS - 1) {
			run Pacer(i)
		}
#endif
#endif
#ifdef ROLLBACK
		run Disk();
#endif
	}
}
