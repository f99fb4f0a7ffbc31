# Sidekiq: `push_bulk`, ten threads, and the poll interval of its documentation, which is the default.
require 'sidekiq'

what, port, count, first, step = ARGV
port = ENV.fetch('COMPARE_PORT', port)
url = { url: "redis://127.0.0.1:#{port}/0" }
Sidekiq.configure_client { |config| config.redis = url }
Sidekiq.configure_server { |config| config.redis = url }

class Job
  include Sidekiq::Worker
  sidekiq_options queue: 'bench'

  def perform(due, _text)
    now = Process.clock_gettime(Process::CLOCK_REALTIME, :float_millisecond)
    File.write(ENV.fetch('COMPARE_LOG'), "#{due} #{now}\n", mode: 'a')
  end
end

case what
when 'schedule'
  dues = (0...count.to_i).map { |number| first.to_f + number * step.to_f }
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  dues.each_slice(500) do |some|
    Sidekiq::Client.push_bulk('class' => Job, 'args' => some.map { |due| [due, 'x' * 180] }, 'at' => some.map { |due| due / 1000 })
  end
  puts Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
when 'work'
  ENV['COMPARE_PORT'] = port
  exec('sidekiq', '-r', File.expand_path(__FILE__), '-c', '10', '-q', 'bench')
end
