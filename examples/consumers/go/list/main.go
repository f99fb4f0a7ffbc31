// Takes jobs from an acknowledged list. REDIS_URL=… go run ./list orders
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/gomodule/redigo/redis"
)

func closeOrder(job map[string]any) error {
	_, err := fmt.Println("done", job["key"], job["payload"])
	return err
}

func main() {
	list := os.Args[1]
	db, err := redis.DialURL(os.Getenv("REDIS_URL"))
	for err == nil || err == redis.ErrNil {
		var taken [][]byte
		if taken, err = redis.ByteSlices(db.Do("BLPOP", list, 1)); err != nil {
			continue
		}
		var job map[string]any
		if err = json.Unmarshal(taken[1], &job); err != nil {
			continue
		}
		if err := closeOrder(job); err != nil {
			log.Print(job["key"], err) // Not acknowledged, it comes again when its lease is over.
			continue
		}
		_, err = db.Do("RPUSH", list+":done", job["lease"])
	}
	log.Fatal(err)
}
