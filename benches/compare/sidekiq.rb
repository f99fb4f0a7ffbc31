# Sidekiq: `push_bulk`, or `perform_at` in ten threads, and a worker with ten threads and the poll interval of its
# documentation, which is the default.
require 'sidekiq'

what, port, count, first, step = ARGV
port = ENV.fetch('COMPARE_PORT', port)
url = { url: "redis://127.0.0.1:#{port}/0" }
Sidekiq.configure_client { |config| config.redis = url.merge(size: 10) }
Sidekiq.configure_server { |config| config.redis = url }

class Job
  include Sidekiq::Worker
  sidekiq_options queue: 'bench'

  def perform(due, _text)
    now = Process.clock_gettime(Process::CLOCK_REALTIME, :float_millisecond)
    LOG.syswrite("#{due} #{now}\n")
  end
end

case what
when 'work'
  ENV['COMPARE_PORT'] = port
  exec('sidekiq', '-r', File.expand_path(__FILE__), '-c', '10', '-q', 'bench')
when 'many', 'each'
  dues = (0...count.to_i).map { |number| first.to_f + number * step.to_f }
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  if what == 'many'
    dues.each_slice(500) do |some|
      Sidekiq::Client.push_bulk('class' => Job, 'args' => some.map { |due| [due, 'x' * 180] }, 'at' => some.map { |due| due / 1000 })
    end
  else
    callers = dues.each_slice((dues.size + 9) / 10).map do |some|
      Thread.new { some.each { |due| Job.perform_at(due / 1000, due, 'x' * 180) } }
    end
    callers.each(&:join)
  end
  puts Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
else
  # Sidekiq has loaded this file.
  LOG = File.open(ENV.fetch('COMPARE_LOG'), 'a')
end
