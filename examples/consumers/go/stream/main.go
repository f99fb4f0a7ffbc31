// Takes jobs from an acknowledged stream. REDIS_URL=… go run ./stream orders closers me
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/gomodule/redigo/redis"
)

func closeOrder(job map[string]string) error {
	_, err := fmt.Println("done", job["key"], job["payload"])
	return err
}

func main() {
	stream, group, me := os.Args[1], os.Args[2], os.Args[3]
	db, err := redis.DialURL(os.Getenv("REDIS_URL"))
	for err == nil || err == redis.ErrNil {
		var read []any
		read, err = redis.Values(db.Do("XREADGROUP", "GROUP", group, me, "COUNT", 10, "BLOCK", 1000,
			"STREAMS", stream, ">"))
		for _, of := range read {
			for _, entry := range of.([]any)[1].([]any) {
				id := entry.([]any)[0]
				job, _ := redis.StringMap(entry.([]any)[1], nil)
				if err := closeOrder(job); err != nil {
					log.Printf("%s: %v", id, err) // Not acknowledged, it comes again.
					continue
				}
				_, err = db.Do("XACK", stream, group, id)
			}
		}
	}
	log.Fatal(err)
}
